package main

import (
	"fmt"
	"time"
)

// producer is the state of one idempotent writer.
type producer struct {
	id  string
	seq int
}

// client is one connection to a server. Methods block until the server has answered.
type client interface {
	create(stream string) error
	// write appends the records and returns once all are acknowledged, with a position after them.
	write(stream string, records [][]byte, as *producer) (string, error)
	// readAll hands every byte of the stream to sink, from its begin to its present end.
	readAll(stream string, sink func([]byte)) error
	// readAt reads once after a position, at most limit bytes; it tells when the first byte came.
	readAt(stream, position string, limit int64) (first time.Duration, bytes int64, err error)
	// follow hands over what is written from now on, until sink returns false. It calls ready once
	// it would see a new record.
	follow(stream string, ready func(), sink func([]byte) bool) error
	close()
}

func dial() (client, error) {
	switch opt.protocol {
	case "streams":
		return newStreamsClient(), nil
	case "redis":
		return newRedisClient()
	case "nats":
		return newNATSClient()
	}
	return nil, fmt.Errorf("-protocol %s is not known", opt.protocol)
}

func streamName(number int) string {
	return fmt.Sprintf("%s-%d", opt.stream, number)
}

func createStreams(count int) error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.close()
	for i := 0; i < count; i++ {
		if err := c.create(streamName(i)); err != nil {
			return fmt.Errorf("create %s: %w", streamName(i), err)
		}
	}
	return nil
}
