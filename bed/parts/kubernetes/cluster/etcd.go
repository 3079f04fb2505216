package main

import (
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
)

// etcdCommand runs one etcd member on loopback, without fsync: its data need not
// survive a crash of the machine.
func etcdCommand() *cobra.Command {
	var dataDir, clientURL, peerURL string
	command := &cobra.Command{
		Use:          "etcd",
		SilenceUsage: true,
		RunE: func(*cobra.Command, []string) error {
			client, err := url.Parse(clientURL)
			if err != nil {
				return err
			}
			peer, err := url.Parse(peerURL)
			if err != nil {
				return err
			}
			config := embed.NewConfig()
			config.Dir = dataDir
			config.UnsafeNoFsync = true
			config.LogLevel = "warn"
			config.ListenClientUrls = []url.URL{*client}
			config.AdvertiseClientUrls = []url.URL{*client}
			config.ListenPeerUrls = []url.URL{*peer}
			config.AdvertisePeerUrls = []url.URL{*peer}
			config.InitialCluster = config.InitialClusterFromName(config.Name)
			server, err := embed.StartEtcd(config)
			if err != nil {
				return err
			}
			defer server.Close()
			select {
			case <-server.Server.ReadyNotify():
			case <-time.After(30 * time.Second):
				return fmt.Errorf("etcd was not ready within 30 s")
			}
			stop := make(chan os.Signal, 1)
			signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
			select {
			case <-stop:
				return nil
			case err := <-server.Err():
				return err
			}
		},
	}
	command.Flags().StringVar(&dataDir, "data-dir", "", "where etcd keeps its data")
	command.Flags().StringVar(&clientURL, "listen-client-url", "", "the URL clients use, such as http://127.0.0.1:2379")
	command.Flags().StringVar(&peerURL, "listen-peer-url", "", "the URL peers would use")
	return command
}
