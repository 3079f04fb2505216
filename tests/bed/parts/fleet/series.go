package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// series exposes the counters of many pods on one address: `fleet series ADDRESS
// APPS PODS RATE NOISE`. Pod P of app A, in the namespace and with the name that
// the benchmark gives them, counts RATE requests a second; from scrape to scrape
// that wobbles by up to NOISE of it.
func series(arguments []string) error {
	if len(arguments) != 5 {
		return fmt.Errorf("ADDRESS APPS PODS RATE NOISE expected")
	}
	var numbers [4]float64
	for place, text := range arguments[1:] {
		number, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		numbers[place] = number
	}
	apps, pods, rate, noise := int(numbers[0]), int(numbers[1]), numbers[2], numbers[3]
	var mutex sync.Mutex
	counters := make([]float64, apps*pods)
	last := time.Now()
	expose := func(w http.ResponseWriter, _ *http.Request) {
		mutex.Lock()
		defer mutex.Unlock()
		now := time.Now()
		passed := now.Sub(last).Seconds()
		last = now
		text := bufio.NewWriterSize(w, 1<<16)
		defer text.Flush()
		fmt.Fprintln(text, "# TYPE http_requests counter")
		for app := range apps {
			for pod := range pods {
				place := app*pods + pod
				counters[place] += rate * passed * (1 + noise*(2*rand.Float64()-1))
				fmt.Fprintf(text, "http_requests_total{namespace=\"bench-%d\",pod=\"app-%d-%d\",app=\"app-%d\"} %.3f\n",
					app%10, app, pod, app, counters[place])
			}
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", expose)
	return http.ListenAndServe(arguments[0], mux)
}
