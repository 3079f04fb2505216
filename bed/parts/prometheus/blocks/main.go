// Command blocks writes a week of metrics of many autoscaled workloads as blocks of Prometheus, a
// block for each day, and the autoscalers themselves as YAML: `blocks FOLDER AUTOSCALERS END SEED`.
// The week ends at END, in Unix seconds. The same arguments give the same samples.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/prometheus/prometheus/tsdb"
	"golang.org/x/sync/errgroup"
)

const (
	days = 7
	// Minutes of a day, with a scrape in each.
	day    = 24 * 60
	minute = int64(60_000)
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: blocks FOLDER AUTOSCALERS END SEED")
		os.Exit(2)
	}
	var numbers [3]int64
	for place, text := range os.Args[2:] {
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			fmt.Fprintln(os.Stderr, "blocks:", err)
			os.Exit(2)
		}
		numbers[place] = number
	}
	if err := write(os.Args[1], int(numbers[0]), numbers[1]*1000, numbers[2]); err != nil {
		fmt.Fprintln(os.Stderr, "blocks:", err)
		os.Exit(1)
	}
}

func write(folder string, count int, end, seed int64) error {
	workloads := make([]*workload, count)
	for place := range workloads {
		workloads[place] = newWorkload(place, end-days*day*minute, seed)
	}
	for number := range days {
		fmt.Fprintf(os.Stderr, "  day %d of %d\n", number+1, days)
		if err := writeDay(filepath.Join(folder, "data"), workloads, number*day); err != nil {
			return err
		}
	}
	// Last, as it says that all the rest is there.
	return writeAutoscalers(filepath.Join(folder, "fleet.yaml"), workloads)
}

// writeDay writes the block of the day whose first minute this is.
func writeDay(folder string, workloads []*workload, first int) (err error) {
	// A writer takes samples that are up to half of its block older than the newest. Each workload
	// is written for all of the day, so the block is said to be twice as long.
	writer, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), folder, 2*day*minute)
	if err != nil {
		return err
	}
	defer func() {
		if closed := writer.Close(); err == nil {
			err = closed
		}
	}()
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, one := range workloads {
		appender := writer.AppenderV2(context.Background())
		group.Go(func() error {
			if err := one.append(appender, first); err != nil {
				return err
			}
			return appender.Commit()
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	_, err = writer.Flush(context.Background())
	return err
}

func writeAutoscalers(path string, workloads []*workload) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	for _, one := range workloads {
		fmt.Fprintf(file, `---
apiVersion: plimsoll.dev/v1alpha1
kind: Autoscaler
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: %[1]s}
  minReplicas: %[3]d
  maxReplicas: %[4]d
  customMetrics:
    - %[5]s
`, one.name, one.namespace, minReplicas, maxReplicas, one.metric())
	}
	return file.Close()
}
