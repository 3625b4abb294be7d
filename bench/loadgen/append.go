package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const errorsMax = 50

// writer is one connection that appends in a closed loop.
type writer struct {
	number    int
	latencies []int64
	errors    int
	lastError error
}

const (
	warming = iota
	measuring
	stopping
)

// runAppend measures acknowledged appends: every connection sends one and waits for its answer.
func runAppend() (figures, error) {
	if err := createStreams(opt.streams); err != nil {
		return nil, err
	}
	var phase atomic.Int32
	var running sync.WaitGroup
	writers := make([]*writer, opt.connections)
	for i := range writers {
		writers[i] = &writer{number: i}
		running.Add(1)
		go func(w *writer) {
			defer running.Done()
			w.run(&phase)
		}(writers[i])
	}
	time.Sleep(opt.warm)
	phase.Store(measuring)
	m := startMeter()
	time.Sleep(opt.seconds)
	phase.Store(stopping)
	found := figures{}
	m.read(found, 0)
	elapsed := time.Since(m.begun).Seconds()
	running.Wait()
	var all []int64
	failed := 0
	for _, w := range writers {
		all = append(all, w.latencies...)
		failed += w.errors
		if w.lastError != nil {
			found["error"] = w.lastError.Error()
		}
	}
	records := len(all) * opt.batch
	addLatencies(found, "", all)
	found["requests_per_s"] = rounded(float64(len(all)) / elapsed)
	found["records_per_s"] = rounded(float64(records) / elapsed)
	found["mb_per_s"] = rounded(float64(records*opt.size) / elapsed / 1e6)
	if records > 0 && opt.serverPID > 0 {
		found["server_cpu_us_per_record"] = rounded(found["server_cpu_s"].(float64) / float64(records) * 1e6)
	}
	found["errors"] = failed
	return found, nil
}

func (w *writer) run(phase *atomic.Int32) {
	c, err := dial()
	if err != nil {
		w.errors, w.lastError = 1, err
		return
	}
	defer c.close()
	stream := streamName(w.number % opt.streams)
	var as *producer
	if opt.producers {
		as = &producer{id: fmt.Sprintf("%s-%d", opt.stream, w.number)}
	}
	records := make([][]byte, opt.batch)
	w.latencies = make([]int64, 0, 1<<15)
	for count := 0; phase.Load() != stopping; {
		begunIn := phase.Load()
		now := time.Now()
		for i := range records {
			records[i] = makeRecord(records[i], w.number*1_000_000_000+count, now.UnixNano())
			count++
		}
		sent := time.Now()
		_, err := c.write(stream, records, as)
		took := time.Since(sent)
		if err != nil {
			w.errors, w.lastError = w.errors+1, err
			if w.errors > errorsMax {
				return
			}
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if as != nil {
			as.seq++
		}
		if begunIn == measuring && phase.Load() == measuring {
			w.latencies = append(w.latencies, int64(took))
		}
	}
}

// runFill makes a history of opt.n records, or of as many as fit into opt.seconds.
func runFill() (figures, error) {
	if err := createStreams(1); err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	var lock sync.Mutex
	var offsets []string
	var written atomic.Int64
	var failure error
	m := startMeter()
	until := m.begun.Add(opt.seconds)
	for i := 0; i < opt.connections; i++ {
		running.Add(1)
		go func(number int) {
			defer running.Done()
			own, count, err := fillShare(number, until)
			written.Add(int64(count))
			lock.Lock()
			defer lock.Unlock()
			offsets = append(offsets, own...)
			if err != nil {
				failure = err
			}
		}(i)
	}
	running.Wait()
	if failure != nil {
		return nil, failure
	}
	found := figures{"records": written.Load()}
	m.read(found, int(written.Load()))
	found["records_per_s"] = rounded(float64(written.Load()) / found["seconds"].(float64))
	if opt.offsets != "" {
		return found, os.WriteFile(opt.offsets, []byte(strings.Join(offsets, "\n")+"\n"), 0o644)
	}
	return found, nil
}

func fillShare(number int, until time.Time) (offsets []string, count int, err error) {
	c, err := dial()
	if err != nil {
		return nil, 0, err
	}
	defer c.close()
	share := opt.n / opt.connections
	records := make([][]byte, 0, opt.batch)
	slots := make([][]byte, opt.batch)
	for count < share && time.Now().Before(until) {
		records = records[:0]
		for i := 0; i < min(opt.batch, share-count); i++ {
			slots[i] = makeRecord(slots[i], number*1_000_000_000+count+i, time.Now().UnixNano())
			records = append(records, slots[i])
		}
		offset, err := c.write(streamName(0), records, nil)
		// A server that is full says so and wants a pause; it gets some.
		for tries := 0; err != nil && tries < errorsMax; tries++ {
			time.Sleep(100 * time.Millisecond)
			offset, err = c.write(streamName(0), records, nil)
		}
		if err != nil {
			return offsets, count, err
		}
		count += len(records)
		offsets = append(offsets, offset)
	}
	return offsets, count, nil
}

// runMany creates opt.n streams and appends one record to each.
func runMany() (figures, error) {
	found := figures{"rss_before_mb": serverMemory() >> 20}
	m := startMeter()
	if err := inParallel(found, "creates", func(c client, number int) error {
		return c.create(streamName(number))
	}); err != nil {
		return nil, err
	}
	opt.n = found["creates"].(int)
	if err := inParallel(found, "appends", func(c client, number int) error {
		record := makeRecord(nil, number, time.Now().UnixNano())
		_, err := c.write(streamName(number), [][]byte{record}, nil)
		return err
	}); err != nil {
		return nil, err
	}
	m.read(found, 0)
	return found, nil
}

// inParallel does one thing for each of opt.n numbers, or for as many as fit into opt.seconds.
func inParallel(found figures, what string, do func(c client, number int) error) error {
	var next atomic.Int64
	var running sync.WaitGroup
	var lock sync.Mutex
	var all []int64
	var failure error
	failed := 0
	begun := time.Now()
	for i := 0; i < opt.connections; i++ {
		running.Add(1)
		go func() {
			defer running.Done()
			var own []int64
			errors := 0
			c, err := dial()
			for err == nil && time.Since(begun) < opt.seconds {
				number := int(next.Add(1)) - 1
				if number >= opt.n {
					break
				}
				sent := time.Now()
				if err := do(c, number); err != nil {
					errors++
					lock.Lock()
					failure = err
					lock.Unlock()
					continue
				}
				own = append(own, int64(time.Since(sent)))
			}
			lock.Lock()
			defer lock.Unlock()
			all = append(all, own...)
			failed += errors
			if err != nil {
				failure = err
			}
		}()
	}
	running.Wait()
	if len(all) == 0 && failure != nil {
		return failure
	}
	found[what] = len(all)
	found[what+"_per_s"] = rounded(float64(len(all)) / time.Since(begun).Seconds())
	found[what+"_errors"] = failed
	if failure != nil {
		found["error"] = failure.Error()
	}
	addLatencies(found, what+"_", all)
	return nil
}
