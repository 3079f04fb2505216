package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// load generates requests. PUT /load?namespace=N&selector=S&path=P&qps=Q sets the
// rate of requests to P on the ready pods of N that S selects, spread evenly; 0
// stops them.
func load(arguments []string) error {
	if len(arguments) != 2 {
		return errors.New("a kubeconfig and an address were expected")
	}
	clientset, err := client(arguments[0])
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(clientset, 0)
	pods := factory.Core().V1().Pods()
	informer := pods.Informer()
	factory.Start(context.Background().Done())
	if !cache.WaitForCacheSync(context.Background().Done(), informer.HasSynced) {
		return errors.New("the pods could not be listed")
	}
	g := &generator{
		pods:  pods.Lister(),
		loads: map[string]chan float64{},
		http: &http.Client{
			Timeout:   5 * time.Second,
			Transport: &http.Transport{MaxIdleConnsPerHost: 64, MaxIdleConns: 4096},
		},
	}
	http.HandleFunc("PUT /load", g.set)
	return http.ListenAndServe(arguments[1], nil)
}

type generator struct {
	pods  corelisters.PodLister
	http  *http.Client
	mutex sync.Mutex
	loads map[string]chan float64
}

func (g *generator) set(response http.ResponseWriter, request *http.Request) {
	query := request.URL.Query()
	qps, err := strconv.ParseFloat(query.Get("qps"), 64)
	if err != nil || qps < 0 || qps > 5000 {
		http.Error(response, "qps: a number from 0 to 5000 was expected", http.StatusBadRequest)
		return
	}
	selector, err := labels.Parse(query.Get("selector"))
	if err != nil {
		http.Error(response, "selector: "+err.Error(), http.StatusBadRequest)
		return
	}
	namespace, path := query.Get("namespace"), query.Get("path")
	key := fmt.Sprint(namespace, " ", selector, " ", path)
	g.mutex.Lock()
	defer g.mutex.Unlock()
	rates, known := g.loads[key]
	if !known {
		rates = make(chan float64, 16)
		g.loads[key] = rates
		go g.run(namespace, selector, path, rates)
	}
	rates <- qps
}

// run sends requests evenly in time, to the ready pods in turn.
func (g *generator) run(namespace string, selector labels.Selector, path string, rates chan float64) {
	const step = 10 * time.Millisecond
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	slots := make(chan struct{}, 256)
	qps, owed, turn := 0.0, 0.0, 0
	last := time.Now()
	for {
		select {
		case qps = <-rates:
		case now := <-ticker.C:
			owed = min(owed+qps*now.Sub(last).Seconds(), qps)
			last = now
			ready := g.ready(namespace, selector)
			for ; owed >= 1 && len(ready) > 0; owed-- {
				turn++
				url := "http://" + ready[turn%len(ready)] + path
				slots <- struct{}{}
				go func() {
					defer func() { <-slots }()
					if response, err := g.http.Get(url); err == nil {
						_, _ = io.Copy(io.Discard, response.Body)
						_ = response.Body.Close()
					}
				}()
			}
		}
	}
}

func (g *generator) ready(namespace string, selector labels.Selector) []string {
	pods, err := g.pods.Pods(namespace).List(selector)
	if err != nil {
		return nil
	}
	var addresses []string
	for _, pod := range pods {
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil {
				addresses = append(addresses, fmt.Sprintf("%s:%d", pod.Status.PodIP, podPort))
			}
		}
	}
	return addresses
}
