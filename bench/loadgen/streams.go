package main

import (
	"bytes"
	"fmt"
	"net/url"
	"strconv"
	"time"
)

const jsonType = "Content-Type: application/json\r\n"

// streamsClient speaks the Durable Streams protocol.
type streamsClient struct {
	http *httpClient
	body []byte
}

func newStreamsClient() *streamsClient { return &streamsClient{http: newHTTPClient()} }

func (c *streamsClient) close() { c.http.close() }

func (c *streamsClient) create(stream string) error {
	a, err := c.http.do("PUT", opt.path+stream, jsonType, nil, nil)
	return checked(a, err)
}

func (c *streamsClient) write(stream string, records [][]byte, as *producer) (string, error) {
	c.body = append(c.body[:0], '[')
	for place, record := range records {
		if place > 0 {
			c.body = append(c.body, ',')
		}
		c.body = append(c.body, record...)
	}
	c.body = append(c.body, ']')
	headers := jsonType
	if as != nil {
		headers += "Producer-Id: " + as.id + "\r\nProducer-Epoch: 0\r\nProducer-Seq: " + strconv.Itoa(as.seq) + "\r\n"
	}
	a, err := c.http.do("POST", opt.path+stream, headers, c.body, nil)
	return a.next, checked(a, err)
}

func (c *streamsClient) readAll(stream string, sink func([]byte)) error {
	offset := "-1"
	for {
		a, err := c.read(stream, offset, func(part []byte) bool { sink(part); return true })
		if err = checked(a, err); err != nil {
			return err
		}
		if a.isUpToDate || a.next == "" || a.next == offset {
			return nil
		}
		offset = a.next
	}
}

func (c *streamsClient) readAt(stream, position string, limit int64) (time.Duration, int64, error) {
	got := int64(0)
	a, err := c.read(stream, position, func(part []byte) bool {
		got += int64(len(part))
		return limit <= 0 || got < limit
	})
	if err == errEnough {
		err = nil
	}
	return a.first, got, checked(a, err)
}

func (c *streamsClient) read(stream, offset string, sink func([]byte) bool) (answer, error) {
	return c.http.do("GET", opt.path+stream+"?offset="+url.QueryEscape(offset), "", nil, sink)
}

func (c *streamsClient) follow(stream string, ready func(), sink func([]byte) bool) error {
	a, err := c.read(stream, "now", nil)
	if err = checked(a, err); err != nil {
		return err
	}
	if opt.live == "sse" {
		return c.followEvents(stream, a.next, ready, sink)
	}
	ready()
	for goesOn := true; goesOn; {
		query := "?live=long-poll&offset=" + url.QueryEscape(a.next)
		if a.cursor != "" {
			query += "&cursor=" + url.QueryEscape(a.cursor)
		}
		last := a.next
		a, err = c.http.do("GET", opt.path+stream+query, "", nil, func(part []byte) bool {
			goesOn = sink(part)
			return true
		})
		if err = checked(a, err); err != nil {
			return err
		}
		if a.next == "" {
			a.next = last
		}
	}
	return nil
}

// followEvents goes on where the last response ended: servers end one from time to time.
func (c *streamsClient) followEvents(stream, offset string, ready func(), sink func([]byte) bool) error {
	const mark = `"streamNextOffset":"`
	var seen []byte
	for {
		a, err := c.http.do("GET", opt.path+stream+"?live=sse&offset="+url.QueryEscape(offset),
			"Accept: text/event-stream\r\n", nil, func(part []byte) bool {
				ready()
				seen = append(seen, part...)
				if at := bytes.LastIndex(seen, []byte(mark)); at >= 0 {
					if value, _, whole := bytes.Cut(seen[at+len(mark):], []byte(`"`)); whole {
						offset = string(value)
						seen = seen[:0]
					}
				}
				return sink(part)
			})
		if err == errEnough {
			return nil
		}
		if err = checked(a, err); err != nil {
			return err
		}
	}
}

func checked(a answer, err error) error {
	if err == nil && a.status/100 != 2 {
		return fmt.Errorf("the server answered %d", a.status)
	}
	return err
}
