package main

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
)

const (
	minReplicas = 2
	maxReplicas = 40
	// What each pod is to carry, in requests per second.
	target = 10.0
	// By how much of it the load may differ without a change, and for how many minutes replicas stay,
	// as kube-controller-manager does by default.
	tolerance = 0.1
	window    = 5
	// The characters of the names that Kubernetes generates.
	generated = "bcdfghjklmnpqrstvwxz2456789"
)

// A workload: in each minute of the week its load since the minute before and its replicas, which were
// decided on a minute before; and all pods that it had.
type workload struct {
	name, namespace string
	// Of every second one the metric is the workload's, of the others each pod's.
	perPod   bool
	start    int64
	load     []float64
	replicas []int
	pods     []pod
	// The counter of the workload until now.
	counter float64
}

// A pod that is there from one minute until before another one.
type pod struct {
	name, uid     string
	created, gone int
	// The times in seconds that kube-state-metrics has.
	createdAt, readyAt float64
	counter            float64
}

// newWorkload is the workload of a number. A day's load rises and falls by half, with noise that
// lasts some minutes; the replicas follow it as those of an HPA do.
func newWorkload(place int, start, seed int64) *workload {
	random := rand.New(rand.NewPCG(uint64(seed), uint64(place)))
	w := &workload{
		name:      fmt.Sprintf("app-%04d", place),
		namespace: fmt.Sprintf("team-%02d", place%50),
		perPod:    place%2 == 0,
		start:     start,
		load:      make([]float64, days*day),
		replicas:  make([]int, days*day),
	}
	mean, phase := target*(4+20*random.Float64()*random.Float64()), random.Float64()
	noise := 0.0
	for at := range w.load {
		noise = 0.9*noise + 0.03*random.NormFloat64()
		hours := math.Sin(2 * math.Pi * (float64(at)/day + phase))
		w.load[at] = math.Max(mean*(1+0.5*hours)*(1+noise), 0)
	}
	w.scale()
	w.makePods(random)
	return w
}

func (w *workload) scale() {
	proposals := make([]int, len(w.load))
	now := max(int(math.Ceil(w.load[0]/target)), minReplicas)
	for at, load := range w.load {
		w.replicas[at] = now
		proposal := now
		if math.Abs(load/target/float64(now)-1) > tolerance {
			proposal = int(math.Ceil(load / target))
		}
		proposals[at] = proposal
		for before := max(at-window+1, 0); before < at && proposal < now; before++ {
			proposal = max(proposal, min(proposals[before], now))
		}
		now = min(max(proposal, minReplicas), maxReplicas)
	}
}

// makePods makes a pod where the replicas rise, and removes the newest where they fall.
func (w *workload) makePods(random *rand.Rand) {
	text := func(length int) string {
		name := make([]byte, length)
		for place := range name {
			name[place] = generated[random.IntN(len(generated))]
		}
		return string(name)
	}
	hash := text(9)
	var running []int
	for at, replicas := range w.replicas {
		for len(running) < replicas {
			// Those of the first minute are older than the week.
			created := float64(w.start/1000) + float64(at*60) - 40*random.Float64()
			ready := created + 20 + 20*random.Float64()
			running = append(running, len(w.pods))
			w.pods = append(w.pods, pod{
				name:      fmt.Sprintf("%s-%s-%s", w.name, hash, text(5)),
				uid:       text(12),
				created:   at,
				gone:      len(w.replicas),
				createdAt: math.Floor(created),
				readyAt:   math.Floor(ready),
			})
		}
		for _, index := range running[replicas:] {
			w.pods[index].gone = at
		}
		running = running[:replicas]
	}
}

// metric is the metric of its autoscaler.
func (w *workload) metric() string {
	if w.perPod {
		return fmt.Sprintf("{metricName: http_requests_total, averageValue: %g}", target)
	}
	return fmt.Sprintf("{metricName: orders_total, per: Workload, labels: {deployment: %s}, averageValue: %g}", w.name, target)
}

// append adds the samples of the day whose first minute this is. The days come in their order.
func (w *workload) append(appender storage.AppenderV2, first int) error {
	add := func(from, to int, value func(at int) float64, labelled ...string) error {
		of := labels.FromStrings(append(labelled, "namespace", w.namespace, "job", "bench")...)
		var ref storage.SeriesRef
		var err error
		for at := from; at < to; at++ {
			time := w.start + int64(at)*minute
			if ref, err = appender.Append(ref, of, 0, time, value(at), nil, nil, storage.AOptions{}); err != nil {
				return fmt.Errorf("%s: %w", of, err)
			}
		}
		return nil
	}
	last := first + day
	replicas := func(at int) float64 { return float64(w.replicas[at]) }
	for _, metric := range []string{"kube_deployment_spec_replicas", "kube_deployment_status_replicas_ready"} {
		if err := add(first, last, replicas, labels.MetricName, metric, "deployment", w.name); err != nil {
			return err
		}
	}
	if !w.perPod {
		count := func(at int) float64 {
			w.counter += w.load[at] * 60
			return w.counter
		}
		if err := add(first, last, count, labels.MetricName, "orders_total", "deployment", w.name); err != nil {
			return err
		}
	}
	for index := range w.pods {
		p := &w.pods[index]
		from, to := max(p.created, first), min(p.gone, last)
		if from >= to {
			continue
		}
		for metric, value := range map[string]float64{"kube_pod_created": p.createdAt, "kube_pod_status_ready_time": p.readyAt} {
			constant := func(int) float64 { return value }
			if err := add(from, to, constant, labels.MetricName, metric, "pod", p.name, "uid", p.uid); err != nil {
				return err
			}
		}
		if !w.perPod {
			continue
		}
		// The pods that were there a minute before share the load.
		count := func(at int) float64 {
			if at > p.created {
				p.counter += w.load[at] * 60 / float64(min(w.replicas[at], w.replicas[at-1]))
			}
			return p.counter
		}
		if err := add(from, to, count, labels.MetricName, "http_requests_total", "pod", p.name); err != nil {
			return err
		}
	}
	return nil
}
