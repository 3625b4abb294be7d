package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// answer is what the load needs to know of a response.
type answer struct {
	status     int
	next       string // Stream-Next-Offset
	cursor     string // Stream-Cursor
	isUpToDate bool
	first      time.Duration // until the status line came
	bytes      int64         // of the body
}

// httpClient is one kept-alive HTTP/1.1 connection without goroutines and without header maps.
type httpClient struct {
	connection net.Conn
	reader     *bufio.Reader
	request    []byte
	chunk      []byte
	patience   time.Duration
}

// errEnough ends a body early: the sink wants no more, and the connection cannot be used again.
var errEnough = errors.New("enough")

func newHTTPClient() *httpClient {
	return &httpClient{chunk: make([]byte, 256<<10), patience: 30 * time.Second}
}

func (c *httpClient) close() {
	if c.connection != nil {
		c.connection.Close()
		c.connection = nil
	}
}

func (c *httpClient) open() error {
	if c.connection != nil {
		return nil
	}
	connection, err := net.DialTimeout("tcp", opt.address, 5*time.Second)
	if err != nil {
		return err
	}
	c.connection, c.reader = connection, bufio.NewReaderSize(connection, 64<<10)
	return nil
}

// do sends a request and reads its answer; sink gets the body as it comes.
func (c *httpClient) do(method, path, headers string, body []byte, sink func([]byte) bool) (a answer, err error) {
	if err = c.open(); err != nil {
		return a, err
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	b := append(c.request[:0], method...)
	b = append(b, ' ')
	b = append(b, path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, opt.address...)
	b = append(b, "\r\n"...)
	b = append(b, headers...)
	if method != "GET" {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, int64(len(body)), 10)
		b = append(b, "\r\n"...)
	}
	b = append(b, "\r\n"...)
	b = append(b, body...)
	c.request = b
	begun := time.Now()
	if err = c.connection.SetDeadline(begun.Add(c.patience)); err != nil {
		return a, err
	}
	if _, err = c.connection.Write(b); err != nil {
		return a, err
	}
	length, isChunked, isLast, err := c.readHead(&a, begun)
	if err != nil {
		return a, err
	}
	take := func(part []byte) error {
		a.bytes += int64(len(part))
		if sink != nil && !sink(part) {
			return errEnough
		}
		return nil
	}
	switch {
	case a.status == 204 || a.status == 304:
	case isChunked:
		err = c.readChunks(take)
	case length >= 0:
		err = c.readBody(length, take)
	default:
		err = errors.New("a body without a length")
	}
	if err == nil && isLast {
		c.close()
	}
	return a, err
}

func (c *httpClient) readHead(a *answer, begun time.Time) (length int64, isChunked, isLast bool, err error) {
	length = -1
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		return length, false, false, err
	}
	a.first = time.Since(begun)
	if len(line) < 12 {
		return length, false, false, fmt.Errorf("not HTTP: %q", line)
	}
	if a.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return length, false, false, err
	}
	for {
		if line, err = c.reader.ReadSlice('\n'); err != nil {
			return length, isChunked, isLast, err
		}
		name, value, found := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(":"))
		if !found {
			return length, isChunked, isLast, nil
		}
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			length, _ = strconv.ParseInt(string(value), 10, 64)
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			isChunked = true
		case bytes.EqualFold(name, []byte("connection")):
			isLast = bytes.EqualFold(value, []byte("close"))
		case bytes.EqualFold(name, []byte("stream-next-offset")):
			a.next = string(value)
		case bytes.EqualFold(name, []byte("stream-cursor")):
			a.cursor = string(value)
		case bytes.EqualFold(name, []byte("stream-up-to-date")):
			a.isUpToDate = bytes.EqualFold(value, []byte("true"))
		}
	}
}

func (c *httpClient) readChunks(take func([]byte) error) error {
	for {
		line, err := c.reader.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, _, _ := bytes.Cut(bytes.TrimSpace(line), []byte(";"))
		length, err := strconv.ParseInt(string(size), 16, 64)
		if err != nil {
			return err
		}
		if length == 0 {
			_, err = c.reader.ReadSlice('\n')
			return err
		}
		if err = c.readBody(length, take); err != nil {
			return err
		}
		if _, err = c.reader.Discard(2); err != nil {
			return err
		}
		// A live response lasts as long as something comes.
		if err = c.connection.SetDeadline(time.Now().Add(c.patience)); err != nil {
			return err
		}
	}
}

func (c *httpClient) readBody(length int64, take func([]byte) error) error {
	for length > 0 {
		got, err := c.reader.Read(c.chunk[:min(length, int64(len(c.chunk)))])
		if got > 0 {
			length -= int64(got)
			if stop := take(c.chunk[:got]); stop != nil {
				return stop
			}
		}
		if err == io.EOF && length == 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}
