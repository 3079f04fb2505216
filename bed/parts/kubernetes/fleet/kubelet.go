package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	nodeName = "fleet"
	podPort  = 8080
	// The annotation of a pod whose text is added to its /metrics.
	metricsAnnotation = "bed.plimsoll.dev/metrics"
	// The annotation of a pod with the delay until it is ready.
	readyAfterAnnotation = "bed.plimsoll.dev/ready-after"
)

// kubelet registers a node. For each pod bound to it, it runs an HTTP server on a
// separate loopback address, which it reports as the IP of the pod.
func kubelet(arguments []string) error {
	if len(arguments) != 1 {
		return errors.New("a kubeconfig was expected")
	}
	clientset, err := client(arguments[0])
	if err != nil {
		return err
	}
	ctx := context.Background()
	if err := registerNode(ctx, clientset); err != nil {
		return err
	}
	k := &kubeletState{client: clientset, pods: map[types.UID]*pod{}, next: rand.Uint32()}
	bound := cache.NewListWatchFromClient(clientset.CoreV1().RESTClient(), "pods", "",
		fields.OneTermEqualSelector("spec.nodeName", nodeName))
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: bound,
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { k.sync(ctx, object.(*corev1.Pod)) },
			UpdateFunc: func(_, object any) { k.sync(ctx, object.(*corev1.Pod)) },
			DeleteFunc: func(object any) {
				if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
					object = gone.Obj
				}
				k.remove(object.(*corev1.Pod).UID)
			},
		},
	})
	informer.Run(ctx.Done())
	return nil
}

func registerNode(ctx context.Context, clientset *kubernetes.Clientset) error {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("100k"),
		corev1.ResourceMemory: resource.MustParse("1Pi"),
		corev1.ResourcePods:   resource.MustParse("200k"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{corev1.LabelOSStable: "linux"}},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue,
				LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
			}},
		},
	}
	nodes := clientset.CoreV1().Nodes()
	created, err := nodes.Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	// Admission taints new nodes; the controller that removes the taint does not run here.
	created.Spec.Taints = nil
	if created, err = nodes.Update(ctx, created, metav1.UpdateOptions{}); err != nil {
		return err
	}
	created.Status = node.Status
	_, err = nodes.UpdateStatus(ctx, created, metav1.UpdateOptions{})
	return err
}

type kubeletState struct {
	client    *kubernetes.Clientset
	mutex     sync.Mutex
	pods      map[types.UID]*pod
	next      uint32
	workloads workloads
}

// pod is one running server.
type pod struct {
	address string
	server  *http.Server
	started metav1.Time
	// The number of the pod, and its workload.
	order    uint32
	workload string
	ready    atomic.Bool
	// The number of requests by metric, which is part of the path.
	hits sync.Map
	text atomic.Value
	// The recorded load, if any.
	recording atomic.Pointer[recording]
	kubelet   *kubeletState
}

func (k *kubeletState) sync(ctx context.Context, object *corev1.Pod) {
	if object.DeletionTimestamp != nil {
		k.remove(object.UID)
		go untilDone(func() error {
			now := int64(0)
			return k.client.CoreV1().Pods(object.Namespace).Delete(ctx, object.Name,
				metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &object.UID}})
		})
		return
	}
	k.mutex.Lock()
	running, known := k.pods[object.UID]
	if !known {
		running = k.start()
		running.workload = workloadOf(object)
		k.pods[object.UID] = running
	}
	k.mutex.Unlock()
	running.text.Store(object.Annotations[metricsAnnotation])
	if text := object.Annotations[recordingAnnotation]; text != "" {
		if recording, err := parseRecording(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
		} else {
			running.recording.Store(recording)
		}
	}
	if known {
		return
	}
	delay, _ := time.ParseDuration(object.Annotations[readyAfterAnnotation])
	go func() {
		if delay > 0 {
			k.report(ctx, object, running, false)
			time.Sleep(delay)
		}
		k.report(ctx, object, running, true)
	}()
}

// start serves on the next free loopback address: several fleets may run on one
// machine.
func (k *kubeletState) start() *pod {
	running := &pod{started: metav1.Now(), kubelet: k}
	running.text.Store("")
	for {
		k.next++
		n := k.next
		running.address = fmt.Sprintf("127.%d.%d.%d", 1+n>>16%250, n>>8%256, 1+n%250)
		listener, err := net.Listen("tcp", net.JoinHostPort(running.address, fmt.Sprint(podPort)))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			panic(err)
		}
		running.order = n
		running.server = &http.Server{Handler: running, ReadHeaderTimeout: 10 * time.Second}
		go func() { _ = running.server.Serve(listener) }()
		return running
	}
}

func (k *kubeletState) remove(uid types.UID) {
	k.mutex.Lock()
	running := k.pods[uid]
	delete(k.pods, uid)
	k.mutex.Unlock()
	if running != nil {
		_ = running.server.Close()
	}
}

func (k *kubeletState) report(ctx context.Context, object *corev1.Pod, running *pod, ready bool) {
	running.ready.Store(ready)
	readiness := corev1.ConditionFalse
	if ready {
		readiness = corev1.ConditionTrue
	}
	now := metav1.Now()
	condition := func(kind corev1.PodConditionType, status corev1.ConditionStatus) corev1.PodCondition {
		return corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: now}
	}
	status := corev1.PodStatus{
		Phase:     corev1.PodRunning,
		PodIP:     running.address,
		PodIPs:    []corev1.PodIP{{IP: running.address}},
		StartTime: &running.started,
		Conditions: []corev1.PodCondition{
			condition(corev1.PodInitialized, corev1.ConditionTrue),
			condition(corev1.ContainersReady, readiness),
			condition(corev1.PodReady, readiness),
		},
	}
	for _, container := range object.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: ready,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: running.started}},
		})
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		panic(err)
	}
	untilDone(func() error {
		_, err := k.client.CoreV1().Pods(object.Namespace).Patch(ctx, object.Name,
			types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}

// untilDone retries a write while the API server is away, as a kubelet does. What the API server
// refuses, because the pod is gone or another one, is not retried.
func untilDone(write func() error) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := write()
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
			return
		}
		time.Sleep(wait)
	}
}

// ServeHTTP counts requests to /hit/METRIC and exposes the counts at /metrics.
func (p *pod) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	if metric, hit := strings.CutPrefix(request.URL.Path, "/hit/"); hit {
		count, _ := p.hits.LoadOrStore(metric, new(atomic.Int64))
		count.(*atomic.Int64).Add(1)
		fmt.Fprintln(response, "ok")
		return
	}
	if request.URL.Path != "/metrics" {
		http.NotFound(response, request)
		return
	}
	response.Header().Set("Content-Type", "text/plain; version=0.0.4")
	var lines []string
	p.hits.Range(func(metric, count any) bool {
		lines = append(lines, fmt.Sprintf("# TYPE %s counter\n%s %d\n", metric, metric, count.(*atomic.Int64).Load()))
		return true
	})
	sort.Strings(lines)
	fmt.Fprint(response, strings.Join(lines, ""), p.kubelet.recorded(p), p.text.Load(), "\n")
}
