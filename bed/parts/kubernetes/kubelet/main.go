// Command kubelet is what a node of a Kubernetes cluster runs beside its container
// runtime: kubelet and kube-proxy, unmodified, chosen by the first argument.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	programs := map[string]func() *cobra.Command{
		"kubelet":    func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
		"kube-proxy": proxy.NewProxyCommand,
	}
	if len(os.Args) < 2 || programs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: kubelet kubelet|kube-proxy [flags]")
		os.Exit(2)
	}
	name := os.Args[1]
	os.Args = os.Args[1:]
	os.Exit(cli.Run(programs[name]()))
}
