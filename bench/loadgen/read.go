package main

import (
	"fmt"
	"math/rand"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// runRead measures a catch-up read: every connection reads the whole stream once.
func runRead() (figures, error) {
	var running sync.WaitGroup
	var lock sync.Mutex
	var failure error
	records, bytes := 0, int64(0)
	m := startMeter()
	for i := 0; i < opt.connections; i++ {
		running.Add(1)
		go func() {
			defer running.Done()
			seen := counter{}
			c, err := dial()
			if err == nil {
				defer c.close()
				err = c.readAll(streamName(0), seen.take)
			}
			lock.Lock()
			defer lock.Unlock()
			records, bytes = records+seen.records, bytes+seen.bytes
			if err != nil {
				failure = err
			}
		}()
	}
	running.Wait()
	if failure != nil {
		return nil, failure
	}
	found := figures{"records": records, "body_bytes": bytes}
	m.read(found, records)
	elapsed := time.Since(m.begun).Seconds()
	found["records_per_s"] = rounded(float64(records) / elapsed)
	// Of the records' own bytes, so that no protocol is paid for its wrapping.
	found["mb_per_s"] = rounded(float64(records*opt.size) / elapsed / 1e6)
	return found, nil
}

// runRandom reads at random offsets of the history, one after another.
func runRandom() (figures, error) {
	text, err := os.ReadFile(opt.offsets)
	if err != nil {
		return nil, err
	}
	offsets := strings.Fields(string(text))
	if len(offsets) == 0 {
		return nil, fmt.Errorf("%s is empty", opt.offsets)
	}
	c, err := dial()
	if err != nil {
		return nil, err
	}
	defer c.close()
	choice := rand.New(rand.NewSource(11))
	var first, whole []int64
	bytes, failed := int64(0), 0
	m := startMeter()
	for i := 0; i < opt.n && time.Since(m.begun) < opt.seconds; i++ {
		sent := time.Now()
		came, got, err := c.readAt(streamName(0), offsets[choice.Intn(len(offsets))], opt.limit)
		if err != nil {
			if failed++; failed > errorsMax {
				return nil, err
			}
			continue
		}
		first = append(first, int64(came))
		whole = append(whole, int64(time.Since(sent)))
		bytes += got
	}
	found := figures{"reads": len(first), "errors": failed}
	m.read(found, len(first))
	addLatencies(found, "", first)
	addLatencies(found, "whole_", whole)
	if len(first) > 0 {
		found["mean_bytes"] = bytes / int64(len(first))
	}
	return found, nil
}

// runFollow measures delivery: one writer at a steady rate, opt.connections live readers.
func runFollow() (figures, error) {
	if err := createStreams(1); err != nil {
		return nil, err
	}
	var subscribed sync.WaitGroup
	var stopped atomic.Bool
	var lock sync.Mutex
	var failure error
	delays := make([][]int64, opt.connections)
	locks := make([]sync.Mutex, opt.connections)
	for i := 0; i < opt.connections; i++ {
		subscribed.Add(1)
		go func(number int) {
			var once sync.Once
			ready := func() { once.Do(subscribed.Done) }
			times := sendTimes{each: func(sentNs int64) {
				delays[number] = append(delays[number], time.Now().UnixNano()-sentNs)
			}}
			c, err := dial()
			if err == nil {
				err = c.follow(streamName(0), ready, func(part []byte) bool {
					locks[number].Lock()
					times.take(part)
					locks[number].Unlock()
					return !stopped.Load()
				})
			}
			if err != nil && !stopped.Load() {
				lock.Lock()
				failure = err
				lock.Unlock()
			}
			ready()
		}(i)
	}
	subscribed.Wait()
	time.Sleep(opt.warm)
	m := startMeter()
	acknowledged, err := writeSteadily(m.begun)
	if err != nil {
		return nil, err
	}
	time.Sleep(time.Second)
	found := figures{"sent": len(acknowledged), "expected": len(acknowledged) * opt.connections}
	m.read(found, len(acknowledged))
	stopped.Store(true)
	var all []int64
	for i := range delays {
		locks[i].Lock()
		all = append(all, delays[i]...)
		locks[i].Unlock()
	}
	found["delivered"] = len(all)
	addLatencies(found, "", all)
	addLatencies(found, "ack_", acknowledged)
	lock.Lock()
	defer lock.Unlock()
	if failure != nil {
		found["error"] = failure.Error()
	}
	return found, nil
}

// writeSteadily appends opt.rate records a second and returns how long each acknowledgement took.
func writeSteadily(begun time.Time) (took []int64, err error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	defer c.close()
	gap := time.Second / time.Duration(opt.rate)
	var record []byte
	for number := 0; time.Since(begun) < opt.seconds; number++ {
		time.Sleep(time.Until(begun.Add(time.Duration(number) * gap)))
		sent := time.Now()
		record = makeRecord(record, number, sent.UnixNano())
		if _, err := c.write(streamName(0), [][]byte{record}, nil); err != nil {
			return took, err
		}
		took = append(took, int64(time.Since(sent)))
	}
	return took, nil
}
