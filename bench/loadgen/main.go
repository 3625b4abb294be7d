// loadgen is the load of `make bench`: closed loops on raw connections, in one small process, so that
// the client takes as little as it can of the cores that it shares with the server.
//
// It speaks Durable Streams (and so measures every server of that protocol), Redis and NATS. Each
// run prints one line of JSON. The standard library is all it needs.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"time"
)

type options struct {
	protocol, address, path                    string
	stream, offsets, live                      string
	connections, streams, batch, size, n, rate int
	serverPID                                  int
	limit                                      int64
	seconds, warm                              time.Duration
	producers                                  bool
}

var opt options

// figures is what a run prints.
type figures map[string]any

var workloads = map[string]func() (figures, error){
	"append": runAppend, // W1, W1s, W2, W3
	"fill":   runFill,   // makes the history that W4 and W7 read
	"read":   runRead,   // W4
	"follow": runFollow, // W5
	"many":   runMany,   // W6
	"random": runRandom, // W7
}

func main() {
	do := flag.String("do", "append", "append, fill, read, follow, many, random")
	flag.StringVar(&opt.protocol, "protocol", "streams", "streams, redis, nats")
	flag.StringVar(&opt.address, "address", "127.0.0.1:4437", "host:port of the server")
	flag.StringVar(&opt.path, "path", "/v1/stream/", "what stands before a stream's name in a URL")
	flag.StringVar(&opt.stream, "stream", "bench", "begin of every stream's name")
	flag.StringVar(&opt.offsets, "offsets", "", "file of offsets: fill writes it, random reads it")
	flag.StringVar(&opt.live, "live", "sse", "follow: sse or long-poll")
	flag.IntVar(&opt.connections, "connections", 64, "connections, each with one request at a time")
	flag.IntVar(&opt.streams, "streams", 1, "streams that the connections share")
	flag.IntVar(&opt.batch, "batch", 1, "records of an append")
	flag.IntVar(&opt.size, "size", 200, "bytes of a record")
	flag.IntVar(&opt.n, "n", 1000, "records to fill, streams to create, reads at random offsets")
	flag.IntVar(&opt.rate, "rate", 200, "follow: records the writer sends in a second")
	flag.IntVar(&opt.serverPID, "pid", 0, "the server's process: its CPU and memory are measured")
	flag.Int64Var(&opt.limit, "limit", 65536, "random: bytes after which a read is dropped, 0: none")
	flag.DurationVar(&opt.seconds, "seconds", 3*time.Second, "how long to measure; fill: at most")
	flag.DurationVar(&opt.warm, "warm", 700*time.Millisecond, "how long to run before")
	flag.BoolVar(&opt.producers, "producers", false, "idempotent producers")
	flag.Parse()
	debug.SetGCPercent(400)
	run, known := workloads[*do]
	if !known {
		fail(fmt.Errorf("-do %s is not known", *do))
	}
	found, err := run()
	if err != nil {
		fail(err)
	}
	line, err := json.Marshal(found)
	if err != nil {
		fail(err)
	}
	fmt.Println(string(line))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "loadgen:", err)
	os.Exit(1)
}
