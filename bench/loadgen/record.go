package main

import (
	"bytes"
	"math/rand"
	"strconv"
)

// A record is a JSON object of exactly opt.size bytes: a number, the time it was sent, and padding.
const recordBegin = `{"number":"`
const numberDigits = 16
const timeBegin = `","sent":`
const timeDigits = 19
const padBegin = `,"pad":"`

var padding = func() []byte {
	source := rand.New(rand.NewSource(7))
	made := make([]byte, 65536)
	for i := range made {
		made[i] = "0123456789abcdef"[source.Intn(16)]
	}
	return made
}()

// makeRecord writes a record into buffer, which it may reuse.
func makeRecord(buffer []byte, number int, sentNs int64) []byte {
	b := append(buffer[:0], recordBegin...)
	b = appendDigits(b, int64(number), numberDigits)
	b = append(b, timeBegin...)
	b = appendDigits(b, sentNs, timeDigits)
	b = append(b, padBegin...)
	if room := opt.size - len(b) - 2; room > 0 {
		b = append(b, padding[:room]...)
	}
	return append(b, '"', '}')
}

func appendDigits(b []byte, value int64, digits int) []byte {
	begin := len(b)
	for i := 0; i < digits; i++ {
		b = append(b, '0')
	}
	text := strconv.FormatInt(value, 10)
	copy(b[begin+digits-len(text):], text)
	return b
}

// counter counts records in bytes that may be cut anywhere.
type counter struct {
	records int
	bytes   int64
	seam    []byte
}

func (c *counter) take(data []byte) {
	c.bytes += int64(len(data))
	over := len(recordBegin) - 1
	if len(c.seam) > 0 {
		joined := append(c.seam, data[:min(over, len(data))]...)
		c.records += bytes.Count(joined, []byte(recordBegin))
	}
	c.records += bytes.Count(data, []byte(recordBegin))
	if len(data) >= over {
		c.seam = append(c.seam[:0], data[len(data)-over:]...)
		return
	}
	c.seam = append(c.seam, data...)
	if extra := len(c.seam) - over; extra > 0 {
		c.seam = append(c.seam[:0], c.seam[extra:]...)
	}
}

// sendTimes tells when each record that comes was sent; the data may be cut anywhere.
type sendTimes struct {
	rest []byte
	each func(sentNs int64)
}

func (s *sendTimes) take(data []byte) {
	const ahead = len(recordBegin) + numberDigits + len(timeBegin)
	s.rest = append(s.rest, data...)
	at := 0
	for {
		found := bytes.Index(s.rest[at:], []byte(recordBegin))
		if found < 0 {
			at = max(at, len(s.rest)-len(recordBegin)+1)
			break
		}
		at += found
		if len(s.rest)-at < ahead+timeDigits {
			break
		}
		sent, err := strconv.ParseInt(string(s.rest[at+ahead:at+ahead+timeDigits]), 10, 64)
		if err == nil {
			s.each(sent)
		}
		at += ahead + timeDigits
	}
	s.rest = append(s.rest[:0], s.rest[at:]...)
}
