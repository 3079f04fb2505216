// Command pods is what the pods of the node run: `pods serve` is an application, an HTTP server on
// port 8080 that counts its requests and takes CPU time for those to /burn; `pods pause` holds the
// namespaces of a pod.
package main

import (
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"runtime"
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

func serve() {
	var requests atomic.Int64
	http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "# TYPE http_requests_total counter\nhttp_requests_total %d\n", requests.Load())
	})
	http.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/burn", func(http.ResponseWriter, *http.Request) {
		requests.Add(1)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for end := used() + 20*time.Millisecond; used() < end; {
		}
	})
	http.HandleFunc("/", func(http.ResponseWriter, *http.Request) { requests.Add(1) })
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":8080", nil))
	os.Exit(1)
}
