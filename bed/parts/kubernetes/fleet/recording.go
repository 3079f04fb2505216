package main

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A recorded load is divided among the pods of a workload, so that two workloads
// of the same size with the same recording expose the same values. An annotation
// holds it:
//
//	START EPOCH; METRIC VALUE VALUE ...; METRIC VALUE ...
//
// START is a time in Unix seconds, and EPOCH the seconds that each value lasts. A
// value is the load of the whole workload; "-" means that the metric is missing.
// The last value lasts forever. Values change, and ready pods are counted, only at
// the start of an epoch.
const recordingAnnotation = "bed.plimsoll.dev/recording"

// The factor of the share of a pod that is not ready: starting up takes CPU.
const startupBurn = 2

type recording struct {
	start   float64
	epoch   float64
	metrics []recorded
}

type recorded struct {
	name   string
	values []string
}

func parseRecording(text string) (*recording, error) {
	parts := strings.Split(text, ";")
	var r recording
	if _, err := fmt.Sscan(parts[0], &r.start, &r.epoch); err != nil {
		return nil, fmt.Errorf("%s: START EPOCH expected: %w", recordingAnnotation, err)
	}
	for _, part := range parts[1:] {
		if words := strings.Fields(part); len(words) > 1 {
			r.metrics = append(r.metrics, recorded{words[0], words[1:]})
		}
	}
	return &r, nil
}

// epochAt counts epochs from the start. Before it they are negative, with the first value.
func (r *recording) epochAt(now time.Time) int {
	return int(math.Floor((float64(now.UnixMilli())/1000 - r.start) / r.epoch))
}

// expose writes the metrics of a pod in an epoch. Pods differ: the first has more
// than its share, the last less.
func (r *recording) expose(epoch, place, pods int, ready bool) string {
	var text strings.Builder
	for _, metric := range r.metrics {
		value, err := strconv.ParseFloat(metric.values[min(max(epoch, 0), len(metric.values)-1)], 64)
		if err != nil {
			continue
		}
		share := value / float64(max(pods, 1))
		if ready {
			share *= 1 + 0.3*float64(pods-1-2*place)/float64(pods)
		} else {
			share *= startupBurn
		}
		fmt.Fprintf(&text, "%s{container=\"app\"} %g\n", metric.name, share)
	}
	return text.String()
}

// workloads caches the ready pods of each workload for an epoch.
type workloads struct {
	mutex sync.Mutex
	seen  map[string]*census
}

type census struct {
	epoch int
	ready []*pod
}

// workloadOf names the workload of a pod by its namespace and app label.
func workloadOf(object *corev1.Pod) string {
	return object.Namespace + "/" + object.Labels["app"]
}

func (w *workloads) ready(workload string, epoch int, running func() []*pod) []*pod {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.seen == nil {
		w.seen = map[string]*census{}
	}
	known := w.seen[workload]
	if known == nil || known.epoch != epoch {
		ready := running()
		sort.Slice(ready, func(i, j int) bool { return ready[i].order < ready[j].order })
		known = &census{epoch, ready}
		w.seen[workload] = known
	}
	return known.ready
}

// recorded returns the metrics of the recorded load of a pod.
func (k *kubeletState) recorded(p *pod) string {
	r := p.recording.Load()
	if r == nil {
		return ""
	}
	epoch := r.epochAt(time.Now())
	ready := k.workloads.ready(p.workload, epoch, func() []*pod {
		k.mutex.Lock()
		defer k.mutex.Unlock()
		var ready []*pod
		for _, other := range k.pods {
			if other.workload == p.workload && other.ready.Load() {
				ready = append(ready, other)
			}
		}
		return ready
	})
	for place, other := range ready {
		if other == p {
			return r.expose(epoch, place, len(ready), true)
		}
	}
	return r.expose(epoch, 0, len(ready), false)
}
