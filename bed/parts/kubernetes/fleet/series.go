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
// APPS PODS RATE NOISE [variants]`. Pod P of app A, in the namespace and with the
// name that the benchmark gives them, counts RATE requests per second, with a
// relative noise of up to NOISE from scrape to scrape. With variants the same count
// is also exposed as one of ten and of fifty metrics, as a metric of the app, and
// split into 3 and into 9 series. `POST /step?app=N&factor=F` multiplies the rate of app
// N by F from that moment on.
func series(arguments []string) error {
	variants := len(arguments) == 6 && arguments[5] == "variants"
	if len(arguments) != 5 && !variants {
		return fmt.Errorf("ADDRESS APPS PODS RATE NOISE [variants] expected")
	}
	var numbers [4]float64
	for place, text := range arguments[1:5] {
		number, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		numbers[place] = number
	}
	apps, pods, rate, noise := int(numbers[0]), int(numbers[1]), numbers[2], numbers[3]
	var mutex sync.Mutex
	counters := make([]float64, apps*pods)
	factors := make([]float64, apps)
	for app := range factors {
		factors[app] = 1
	}
	lasts := make([]time.Time, apps)
	for app := range lasts {
		lasts[app] = time.Now()
	}
	advance := func(app int) {
		now := time.Now()
		passed := now.Sub(lasts[app]).Seconds()
		lasts[app] = now
		for place := app * pods; place < (app+1)*pods; place++ {
			counters[place] += rate * factors[app] * passed * (1 + noise*(2*rand.Float64()-1))
		}
	}
	step := func(w http.ResponseWriter, r *http.Request) {
		app, err := strconv.Atoi(r.FormValue("app"))
		factor, wrong := strconv.ParseFloat(r.FormValue("factor"), 64)
		if err != nil || wrong != nil || app < 0 || app >= apps {
			http.Error(w, "app=N and factor=F expected", http.StatusBadRequest)
			return
		}
		mutex.Lock()
		defer mutex.Unlock()
		advance(app)
		factors[app] = factor
	}
	expose := func(w http.ResponseWriter, _ *http.Request) {
		mutex.Lock()
		defer mutex.Unlock()
		for app := range apps {
			advance(app)
		}
		text := bufio.NewWriterSize(w, 1<<16)
		defer text.Flush()
		fmt.Fprintln(text, "# TYPE http_requests counter")
		for app := range apps {
			for pod := range pods {
				place := app*pods + pod
				of := fmt.Sprintf("namespace=\"bench-%d\",pod=\"app-%d-%d\",app=\"app-%d\",tier=\"tier-%d\",fleet=\"all\"",
					app%10, app, pod, app, app%10)
				fmt.Fprintf(text, "http_requests_total{%s} %.3f\n", of, counters[place])
				if !variants {
					continue
				}
				fmt.Fprintf(text, "one_of_ten_%d_total{%s} %.3f\n", app%10, of, counters[place])
				fmt.Fprintf(text, "one_of_fifty_%d_total{%s} %.3f\n", app%50, of, counters[place])
				fmt.Fprintf(text, "own_%d_total{%s} %.3f\n", app, of, counters[place])
				for _, split := range []int{3, 9} {
					for part := range split {
						fmt.Fprintf(text, "split_%d_total{%s,part=\"%d\"} %.3f\n", split, of, part, counters[place]/float64(split))
					}
				}
			}
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", expose)
	mux.HandleFunc("POST /step", step)
	return http.ListenAndServe(arguments[0], mux)
}
