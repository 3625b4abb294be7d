package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

const natsPage = 5000

// natsClient speaks the NATS protocol and the JetStream requests that the workloads need.
type natsClient struct {
	connection net.Conn
	reader     *bufio.Reader
	request    []byte
	inbox      string
}

func newNATSClient() (*natsClient, error) {
	connection, err := net.DialTimeout("tcp", opt.address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	c := &natsClient{connection: connection, reader: bufio.NewReaderSize(connection, 256<<10)}
	c.inbox = fmt.Sprintf("_INBOX.%d", time.Now().UnixNano())
	c.request = append(c.request, `CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}`+"\r\n"...)
	c.request = append(c.request, "SUB "+c.inbox+" 1\r\n"...)
	return c, c.send()
}

func (c *natsClient) close() { c.connection.Close() }

func (c *natsClient) send() error {
	if err := c.connection.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	_, err := c.connection.Write(c.request)
	c.request = c.request[:0]
	return err
}

func (c *natsClient) publish(subject, id string, payload []byte) {
	head := ""
	if id != "" {
		head = "NATS/1.0\r\nNats-Msg-Id: " + id + "\r\n\r\n"
		c.request = append(c.request, fmt.Sprintf("HPUB %s %s %d %d\r\n", subject, c.inbox, len(head), len(head)+len(payload))...)
	} else {
		c.request = append(c.request, fmt.Sprintf("PUB %s %s %d\r\n", subject, c.inbox, len(payload))...)
	}
	c.request = append(c.request, head...)
	c.request = append(c.request, payload...)
	c.request = append(c.request, "\r\n"...)
}

// message reads the next one; it answers pings meanwhile.
func (c *natsClient) message() (head string, payload []byte, err error) {
	for {
		line, err := c.reader.ReadString('\n')
		if err != nil {
			return "", nil, err
		}
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "INFO" || words[0] == "+OK" || words[0] == "PONG":
		case words[0] == "PING":
			if _, err := c.connection.Write([]byte("PONG\r\n")); err != nil {
				return "", nil, err
			}
		case words[0] == "MSG" || words[0] == "HMSG":
			total, err := strconv.Atoi(words[len(words)-1])
			if err != nil {
				return "", nil, err
			}
			whole := make([]byte, total+2)
			if _, err := io.ReadFull(c.reader, whole); err != nil {
				return "", nil, err
			}
			if words[0] == "MSG" {
				return "", whole[:total], nil
			}
			headLength, err := strconv.Atoi(words[len(words)-2])
			if err != nil {
				return "", nil, err
			}
			return string(whole[:headLength]), whole[headLength:total], nil
		default:
			return "", nil, errors.New("nats: " + strings.TrimSpace(line))
		}
	}
}

func (c *natsClient) ask(subject, payload string, into any) error {
	c.publish(subject, "", []byte(payload))
	if err := c.send(); err != nil {
		return err
	}
	head, answer, err := c.message()
	if err != nil {
		return err
	}
	if head != "" && len(answer) == 0 {
		return errors.New("nats: " + strings.TrimSpace(head))
	}
	var failed struct{ Error *struct{ Description string } }
	if json.Unmarshal(answer, &failed) == nil && failed.Error != nil {
		return errors.New("nats: " + failed.Error.Description)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}

func (c *natsClient) create(stream string) error {
	settings := `{"name":"%[1]s","subjects":["%[1]s"],"storage":"file","retention":"limits","allow_direct":true,"num_replicas":1,"discard":"old"}`
	return c.ask("$JS.API.STREAM.CREATE."+stream, fmt.Sprintf(settings, stream), nil)
}

func (c *natsClient) write(stream string, records [][]byte, as *producer) (string, error) {
	for place, record := range records {
		id := ""
		if as != nil {
			id = fmt.Sprintf("%s-%d-%d", as.id, as.seq, place)
		}
		c.publish(stream, id, record)
	}
	if err := c.send(); err != nil {
		return "", err
	}
	last := 0
	for range records {
		_, answer, err := c.message()
		if err != nil {
			return "", err
		}
		var stored struct {
			Seq   int
			Error *struct{ Description string }
		}
		if err := json.Unmarshal(answer, &stored); err != nil {
			return "", err
		}
		if stored.Error != nil {
			return "", errors.New("nats: " + stored.Error.Description)
		}
		last = max(last, stored.Seq)
	}
	return strconv.Itoa(last), nil
}

func (c *natsClient) consumer(stream, from string) (string, error) {
	settings := `{"stream_name":"%s","config":{"ack_policy":"none","deliver_policy":"%s","mem_storage":true,"inactive_threshold":60000000000}}`
	var made struct{ Name string }
	err := c.ask("$JS.API.CONSUMER.CREATE."+stream, fmt.Sprintf(settings, stream, from), &made)
	return made.Name, err
}

func (c *natsClient) pull(stream, consumer string, count int) error {
	wish := fmt.Sprintf(`{"batch":%d,"expires":25000000000}`, count)
	c.publish("$JS.API.CONSUMER.MSG.NEXT."+stream+"."+consumer, "", []byte(wish))
	return c.send()
}

func (c *natsClient) readAll(stream string, sink func([]byte)) error {
	var about struct{ State struct{ Messages int } }
	if err := c.ask("$JS.API.STREAM.INFO."+stream, "", &about); err != nil {
		return err
	}
	consumer, err := c.consumer(stream, "all")
	if err != nil {
		return err
	}
	// Two pulls are open at any time, so that the server never waits for a wish.
	for i := 0; i < 2; i++ {
		if err := c.pull(stream, consumer, natsPage); err != nil {
			return err
		}
	}
	for got := 0; got < about.State.Messages; {
		head, payload, err := c.message()
		if err != nil {
			return err
		}
		if head != "" && len(payload) == 0 {
			return errors.New("nats: " + strings.TrimSpace(head))
		}
		sink(payload)
		if got++; got%natsPage == 0 {
			if err := c.pull(stream, consumer, natsPage); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *natsClient) readAt(stream, position string, limit int64) (time.Duration, int64, error) {
	after, err := strconv.Atoi(position)
	if err != nil {
		return 0, 0, err
	}
	// The position after the last record has nothing behind it: read the one before.
	sent, first, got := time.Now(), time.Duration(0), int64(0)
	wish := fmt.Sprintf(`{"seq":%d,"batch":%d}`, after, max(1, int(limit)/opt.size))
	c.publish("$JS.API.DIRECT.GET."+stream, "", []byte(wish))
	if err := c.send(); err != nil {
		return 0, 0, err
	}
	for {
		head, payload, err := c.message()
		if err != nil {
			return first, got, err
		}
		if first == 0 {
			first = time.Since(sent)
		}
		if len(payload) == 0 && bytes.HasPrefix([]byte(head), []byte("NATS/1.0 ")) {
			return first, got, nil
		}
		got += int64(len(payload))
	}
}

func (c *natsClient) follow(stream string, ready func(), sink func([]byte) bool) error {
	consumer, err := c.consumer(stream, "new")
	if err != nil {
		return err
	}
	if err := c.pull(stream, consumer, 1_000_000); err != nil {
		return err
	}
	ready()
	for goesOn := true; goesOn; {
		head, payload, err := c.message()
		if err != nil {
			return err
		}
		if head != "" && len(payload) == 0 {
			if err := c.pull(stream, consumer, 1_000_000); err != nil {
				return err
			}
			continue
		}
		goesOn = sink(payload)
	}
	return nil
}
