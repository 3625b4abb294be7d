package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

const redisPage = 5000

// redisClient speaks RESP: XADD, XRANGE and XREAD on one connection.
type redisClient struct {
	connection net.Conn
	reader     *bufio.Reader
	request    []byte
	bulk       []byte
}

func newRedisClient() (*redisClient, error) {
	connection, err := net.DialTimeout("tcp", opt.address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return &redisClient{connection: connection, reader: bufio.NewReaderSize(connection, 256<<10)}, nil
}

func (c *redisClient) close()              { c.connection.Close() }
func (c *redisClient) create(string) error { return nil } // XADD creates

func (c *redisClient) command(words ...string) {
	c.request = append(c.request, '*')
	c.request = strconv.AppendInt(c.request, int64(len(words)), 10)
	c.request = append(c.request, "\r\n"...)
	for _, word := range words {
		c.argument([]byte(word))
	}
}

func (c *redisClient) argument(word []byte) {
	c.request = append(c.request, '$')
	c.request = strconv.AppendInt(c.request, int64(len(word)), 10)
	c.request = append(c.request, "\r\n"...)
	c.request = append(c.request, word...)
	c.request = append(c.request, "\r\n"...)
}

func (c *redisClient) send() error {
	if err := c.connection.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	_, err := c.connection.Write(c.request)
	c.request = c.request[:0]
	return err
}

// reply reads one reply, whole; sink gets every string in it with the depth of its array.
func (c *redisClient) reply(depth int, sink func(depth int, text []byte)) error {
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		return err
	}
	kind, rest := line[0], string(line[1:len(line)-2])
	if kind == '-' {
		return errors.New("redis: " + rest)
	}
	if kind != '$' && kind != '*' {
		return nil
	}
	length, err := strconv.Atoi(rest)
	if err != nil || length < 0 {
		return err
	}
	if kind == '*' {
		for i := 0; i < length; i++ {
			if err := c.reply(depth+1, sink); err != nil {
				return err
			}
		}
		return nil
	}
	if cap(c.bulk) < length+2 {
		c.bulk = make([]byte, 2*length+2)
	}
	text := c.bulk[:length+2]
	if _, err := io.ReadFull(c.reader, text); err != nil {
		return err
	}
	sink(depth, text[:length])
	return nil
}

// write pipelines one XADD per record. A producer gets nothing from Redis that would store it once.
func (c *redisClient) write(stream string, records [][]byte, as *producer) (string, error) {
	if as != nil {
		return "", errors.New("Redis has no idempotent producers")
	}
	for _, record := range records {
		c.request = append(c.request, "*5\r\n$4\r\nXADD\r\n"...)
		c.argument([]byte(stream))
		c.request = append(c.request, "$1\r\n*\r\n$1\r\nd\r\n"...)
		c.argument(record)
	}
	if err := c.send(); err != nil {
		return "", err
	}
	last := ""
	for range records {
		if err := c.reply(0, func(_ int, text []byte) { last = string(text) }); err != nil {
			return "", err
		}
	}
	return last, nil
}

// page reads entries after an id. In an XRANGE reply ids are at depth 2, fields and values at 3.
func (c *redisClient) page(stream, after string, count int, sink func([]byte)) (entries int, last string, err error) {
	c.command("XRANGE", stream, after, "+", "COUNT", strconv.Itoa(count))
	if err = c.send(); err != nil {
		return 0, "", err
	}
	isValue := false
	err = c.reply(0, func(depth int, text []byte) {
		if depth == 2 {
			entries, last, isValue = entries+1, string(text), false
			return
		}
		if isValue {
			sink(text)
		}
		isValue = !isValue
	})
	return entries, last, err
}

func (c *redisClient) readAll(stream string, sink func([]byte)) error {
	after := "-"
	for {
		entries, last, err := c.page(stream, after, redisPage, sink)
		if err != nil || entries < redisPage {
			return err
		}
		after = "(" + last
	}
}

func (c *redisClient) readAt(stream, position string, limit int64) (time.Duration, int64, error) {
	sent, first, got := time.Now(), time.Duration(0), int64(0)
	count := max(1, int(limit)/opt.size)
	_, _, err := c.page(stream, "("+position, count, func(text []byte) {
		if first == 0 {
			first = time.Since(sent)
		}
		got += int64(len(text))
	})
	if first == 0 {
		first = time.Since(sent)
	}
	return first, got, err
}

func (c *redisClient) follow(stream string, ready func(), sink func([]byte) bool) error {
	c.command("XINFO", "STREAM", stream)
	if err := c.send(); err != nil {
		return err
	}
	last, isNext := "0-0", false
	err := c.reply(0, func(_ int, text []byte) {
		if isNext {
			last = string(text)
		}
		isNext = string(text) == "last-generated-id"
	})
	if err != nil && !strings.Contains(err.Error(), "no such key") {
		return err
	}
	ready()
	for goesOn := true; goesOn; {
		c.command("XREAD", "BLOCK", "20000", "STREAMS", stream, last)
		if err := c.send(); err != nil {
			return err
		}
		if err := c.reply(0, func(depth int, text []byte) {
			// stream name at 2, entry ids at 4, fields and values at 5.
			if depth == 4 {
				last = string(text)
			} else if depth == 5 && len(text) > 1 {
				goesOn = sink(text)
			}
		}); err != nil {
			return fmt.Errorf("follow: %w", err)
		}
	}
	return nil
}
