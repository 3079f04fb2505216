// Command pods is what the pods of the node run: `pods serve` is an application, an HTTP server on
// port 8080; `pods pause` holds the namespaces of a pod. The application counts requests in
// http_requests_total, or in NAME those to /hit/NAME. Requests to /burn take 20 ms of CPU time, and
// those to /slow a second, while they count in the gauge requests_in_flight, which has no type.
// /queue/N sets the gauge queue_depth.
package main

import (
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	if len(os.Args) != 2 || os.Args[1] != "serve" && os.Args[1] != "pause" {
		fmt.Fprintln(os.Stderr, "usage: pods serve|pause")
		os.Exit(2)
	}
	if os.Args[1] == "serve" {
		go serve()
	}
	<-stop
}

// used is the CPU time of this thread, however many others the machine has to run.
func used() time.Duration {
	const thread = 1
	var usage syscall.Rusage
	if err := syscall.Getrusage(thread, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// counters are the requests by the name of their metric.
type counters struct {
	sync.Mutex
	values map[string]int
}

func (c *counters) count(name string) {
	c.Lock()
	defer c.Unlock()
	c.values[name]++
}

func serve() {
	const requests = "http_requests_total"
	counted := counters{values: map[string]int{requests: 0}}
	var inFlight, queued atomic.Int64
	http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		counted.Lock()
		defer counted.Unlock()
		for name, value := range counted.values {
			fmt.Fprintf(w, "# TYPE %s counter\n%s %d\n", name, name, value)
		}
		fmt.Fprintf(w, "requests_in_flight{module=\"server\",view=\"default\"} %d\n", inFlight.Load())
		fmt.Fprintf(w, "queue_depth %d\n", queued.Load())
	})
	http.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/burn", func(http.ResponseWriter, *http.Request) {
		counted.count(requests)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for end := used() + 20*time.Millisecond; used() < end; {
		}
	})
	http.HandleFunc("/slow", func(http.ResponseWriter, *http.Request) {
		inFlight.Add(1)
		defer inFlight.Add(-1)
		time.Sleep(time.Second)
	})
	http.HandleFunc("/hit/{name}", func(_ http.ResponseWriter, r *http.Request) { counted.count(r.PathValue("name")) })
	http.HandleFunc("/queue/{depth}", func(w http.ResponseWriter, r *http.Request) {
		depth, err := strconv.ParseInt(r.PathValue("depth"), 10, 64)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		queued.Store(depth)
	})
	http.HandleFunc("/", func(http.ResponseWriter, *http.Request) { counted.count(requests) })
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":8080", nil))
	os.Exit(1)
}
