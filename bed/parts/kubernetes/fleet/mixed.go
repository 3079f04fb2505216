package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

// mixed exposes different metrics of many workloads on one address: `fleet mixed
// ADDRESS FILE`. FILE is a mix as JSON. PUT /load?app=A&factor=F multiplies the load
// of the workload A.
func mixed(arguments []string) error {
	if len(arguments) != 2 {
		return fmt.Errorf("ADDRESS FILE expected")
	}
	text, err := os.ReadFile(arguments[1])
	if err != nil {
		return err
	}
	var of mix
	if err := json.Unmarshal(text, &of); err != nil {
		return fmt.Errorf("%s: %w", arguments[1], err)
	}
	e := newExposition(&of)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", e.expose)
	mux.HandleFunc("PUT /load", e.load)
	return http.ListenAndServe(arguments[0], mux)
}

type mix struct {
	// Pods of each workload.
	Pods int
	// The relative noise of values, from scrape to scrape.
	Noise float64
	// Seconds between the samples of the past.
	Step float64
	Apps []struct {
		Namespace, Name string
		Series          []described
	}
}

// described is a metric of each pod of a workload.
type described struct {
	Name string
	// Labels beside namespace and pod.
	Labels string
	// counter, gauge, or histogram: of durations that are spread evenly from 0 to Value
	// seconds, ten each second.
	Kind string
	// The rate of a counter, or the value of a gauge.
	Value float64
	// Whether it follows the load.
	Load bool
	// The seconds before the first scrape that are exposed with it.
	Past float64
}

// The upper bounds of Prometheus's clients, and the infinite one.
var bounds = []string{"0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "+Inf"}

const durationsPerSecond = 10

type metric struct {
	*described
	app string
	// Each line up to its value, and the values.
	lines  []string
	values []float64
}

type exposition struct {
	mutex   sync.Mutex
	noise   float64
	step    float64
	series  []metric
	factors map[string]float64
	last    time.Time
	// Whether the past was read.
	read bool
}

func newExposition(of *mix) *exposition {
	e := &exposition{noise: of.Noise, step: of.Step, factors: map[string]float64{}, last: time.Now()}
	for _, app := range of.Apps {
		e.factors[app.Name] = 1
		for pod := range of.Pods {
			for place := range app.Series {
				s := metric{described: &app.Series[place], app: app.Name}
				labels := fmt.Sprintf("namespace=%q,pod=\"%s-%d\",%s", app.Namespace, app.Name, pod, s.Labels)
				if s.Kind == "histogram" {
					for _, bound := range bounds {
						s.lines = append(s.lines, fmt.Sprintf("%s_bucket{%s,le=%q} ", s.Name, labels, bound))
					}
					s.lines = append(s.lines, fmt.Sprintf("%s_sum{%s} ", s.Name, labels), fmt.Sprintf("%s_count{%s} ", s.Name, labels))
				} else {
					s.lines = []string{fmt.Sprintf("%s{%s} ", s.Name, labels)}
				}
				s.values = make([]float64, len(s.lines))
				e.series = append(e.series, s)
			}
		}
	}
	return e
}

// advance lets seconds pass.
func (s *metric) advance(seconds, noise, factor float64) {
	if !s.Load {
		factor = 1
	}
	noisy := 1 + noise*(2*rand.Float64()-1)
	switch s.Kind {
	case "gauge":
		s.values[0] = s.Value * factor * noisy
	case "counter":
		s.values[0] += s.Value * factor * noisy * seconds
	case "histogram":
		longest, count := s.Value*factor, durationsPerSecond*noisy*seconds
		for place, bound := range bounds {
			upper, _ := strconv.ParseFloat(bound, 64)
			s.values[place] += count * min(1, upper/longest)
		}
		s.values[len(bounds)] += count * longest / 2
		s.values[len(bounds)+1] += count
	}
}

// write writes the values, as those of a time that is not that of the scrape if it is given.
func (s *metric) write(text *bufio.Writer, at *time.Time) {
	for place, line := range s.lines {
		buffer := strconv.AppendFloat(append(text.AvailableBuffer(), line...), s.values[place], 'f', 5, 64)
		if at != nil {
			buffer = strconv.AppendInt(append(buffer, ' '), at.UnixMilli(), 10)
		}
		_, _ = text.Write(append(buffer, '\n'))
	}
}

func (e *exposition) expose(w http.ResponseWriter, _ *http.Request) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	now := time.Now()
	passed := now.Sub(e.last).Seconds()
	e.last = now
	text := bufio.NewWriterSize(w, 1<<16)
	for place := range e.series {
		s := &e.series[place]
		if !e.read {
			for before := s.Past; before > 0; before -= e.step {
				at := now.Add(-time.Duration(before * float64(time.Second)))
				s.advance(e.step, e.noise, 1)
				s.write(text, &at)
			}
			passed = e.step
		}
		s.advance(passed, e.noise, e.factors[s.app])
		s.write(text, nil)
	}
	// Who did not read all of the past reads it again.
	if text.Flush() == nil {
		e.read = true
	}
}

func (e *exposition) load(w http.ResponseWriter, request *http.Request) {
	query := request.URL.Query()
	factor, err := strconv.ParseFloat(query.Get("factor"), 64)
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if _, known := e.factors[query.Get("app")]; err != nil || !known {
		http.Error(w, "app: a workload, and factor: a number were expected", http.StatusBadRequest)
		return
	}
	e.factors[query.Get("app")] = factor
}
