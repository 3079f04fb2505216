// Checks dashboards strictly against the schema of Grafana's Foundation SDK: unknown fields are errors, too.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	failed := false
	for _, file := range os.Args[1:] {
		if err := check(file); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

func check(file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var found dashboard.Dashboard
	if err := filled(found.UnmarshalJSONStrict(raw)); err != nil {
		return err
	}
	return filled(found.Validate())
}

// The SDK returns a list of no errors as an error that is not nil.
func filled(err error) error {
	var all cog.BuildErrors
	if errors.As(err, &all) && len(all) == 0 {
		return nil
	}
	return err
}
