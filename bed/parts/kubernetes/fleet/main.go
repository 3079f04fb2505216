// Command fleet replaces what needs containers: `fleet kubelet` runs an HTTP
// server for every pod, `fleet load` sends requests to them, `fleet series`
// and `fleet mixed` expose the metrics of more pods than one machine can run, and
// `fleet guard` ends a program with the process that started it.
package main

import (
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	commands := map[string]func([]string) error{"kubelet": kubelet, "load": load, "guard": guard, "series": series, "mixed": mixed}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: fleet kubelet KUBECONFIG | fleet load KUBECONFIG CONTROL_ADDRESS | fleet series ADDRESS APPS PODS RATE NOISE [variants] | fleet mixed ADDRESS FILE | fleet guard [-keep] PROGRAM ARGUMENT...")
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "fleet", strings.Join(os.Args[1:2], " ")+":", err)
		os.Exit(1)
	}
}

func client(kubeconfig string) (*kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 500, 1000
	return kubernetes.NewForConfig(config)
}
