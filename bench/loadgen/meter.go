package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const ticksPerSecond = 100 // USER_HZ, the same on every Linux

// meter tells who used the cores between its start and its reading.
type meter struct {
	begun                 time.Time
	server, own, everyone float64
}

func startMeter() meter {
	return meter{time.Now(), serverCPU(), ownCPU(), machineCPU()}
}

// read adds seconds, CPU and memory to what was found. A run is only worth something while others
// leave the cores alone: other_cpu is their share of all cores.
func (m meter) read(into figures, records int) {
	elapsed := time.Since(m.begun).Seconds()
	server, own := serverCPU()-m.server, ownCPU()-m.own
	other := math.Max(0, machineCPU()-m.everyone-server-own)
	into["seconds"] = rounded(elapsed)
	into["server_cpu_s"] = rounded(server)
	into["client_cpu_s"] = rounded(own)
	into["other_cpu"] = rounded(other / elapsed / float64(runtime.NumCPU()))
	into["rss_mb"] = serverMemory() >> 20
	if records > 0 && opt.serverPID > 0 {
		into["server_cpu_us_per_record"] = rounded(server / float64(records) * 1e6)
	}
}

func rounded(value float64) float64 { return math.Round(value*1000) / 1000 }

var quantiles = []float64{0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 100}

// addLatencies adds p50_ms, p99_ms and max_ms, and the whole curve as pairs of percent and ms.
func addLatencies(into figures, prefix string, nanoseconds []int64) {
	if len(nanoseconds) == 0 {
		return
	}
	sort.Slice(nanoseconds, func(i, j int) bool { return nanoseconds[i] < nanoseconds[j] })
	at := func(percent float64) float64 {
		place := int(percent / 100 * float64(len(nanoseconds)-1))
		return rounded(float64(nanoseconds[place]) / 1e6)
	}
	curve := make([][2]float64, 0, len(quantiles))
	for _, percent := range quantiles {
		curve = append(curve, [2]float64{percent, at(percent)})
	}
	into[prefix+"p50_ms"], into[prefix+"p99_ms"], into[prefix+"max_ms"] = at(50), at(99), at(100)
	into[prefix+"curve"] = curve
}

func ownCPU() float64 {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

func machineCPU() float64 {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	// user nice system idle iowait irq softirq steal: all but idle and iowait.
	fields := strings.Fields(strings.SplitN(string(text), "\n", 2)[0])
	busy := 0.0
	for place, field := range fields {
		if place == 0 || place == 4 || place == 5 || place > 8 {
			continue
		}
		ticks, _ := strconv.ParseFloat(field, 64)
		busy += ticks
	}
	return busy / ticksPerSecond
}

func serverCPU() float64 {
	used := 0.0
	for _, fields := range serverStats() {
		user, _ := strconv.ParseFloat(fields[11], 64)
		system, _ := strconv.ParseFloat(fields[12], 64)
		used += (user + system) / ticksPerSecond
	}
	return used
}

func serverMemory() int64 {
	var pages int64
	for _, fields := range serverStats() {
		resident, _ := strconv.ParseInt(fields[21], 10, 64)
		pages += resident
	}
	return pages * int64(os.Getpagesize())
}

// serverStats are the fields of /proc/PID/stat after the name, of the server and all its children.
func serverStats() [][]string {
	if opt.serverPID == 0 {
		return nil
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d/children", opt.serverPID, opt.serverPID)); err != nil {
		return nil
	}
	var found [][]string
	waiting := []string{strconv.Itoa(opt.serverPID)}
	for len(waiting) > 0 {
		pid := waiting[0]
		waiting = waiting[1:]
		text, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			continue
		}
		found = append(found, strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])))
		lists, _ := filepath.Glob("/proc/" + pid + "/task/*/children")
		for _, list := range lists {
			children, _ := os.ReadFile(list)
			waiting = append(waiting, strings.Fields(string(children))...)
		}
	}
	return found
}
