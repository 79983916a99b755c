// SPDX-License-Identifier: Apache-2.0

package story

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

const writerCount = 8

// writeMany is a program of the durability story:
//
//	writers write KUBECONFIG FILE   create, update and delete ConfigMaps from eight clients until
//	                                the server is gone, and note in FILE what was acknowledged
//	writers check KUBECONFIG FILE   compare FILE with what the server has
func writeMany() {
	if len(os.Args) != 4 {
		log.Fatal("usage: writers write|check KUBECONFIG FILE")
	}
	set := clientOf(os.Args[2])
	maps := set.CoreV1().ConfigMaps("default")
	if os.Args[1] == "check" {
		if err := checkWrites(maps, os.Args[3]); err != nil {
			log.Fatal(err)
		}
		return
	}
	file, err := os.OpenFile(os.Args[3], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	w := &writer{maps: maps, file: file}
	var all sync.WaitGroup
	for i := range writerCount {
		all.Go(func() { w.write(context.Background(), fmt.Sprintf("writer-%d", i)) })
	}
	all.Wait()
	fmt.Println("the server is gone;", w.count, "writes were acknowledged")
}

type writer struct {
	maps typedcorev1.ConfigMapInterface
	file *os.File

	mu    sync.Mutex
	count int
}

// acknowledged notes "VERB NAME VALUE".
func (w *writer) acknowledged(verb, name string, value int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintln(w.file, verb, name, value)
	w.count++
	if w.count%100 == 0 {
		fmt.Println("acknowledged", w.count)
	}
}

// write ends with the first write that fails: the server is gone.
func (w *writer) write(ctx context.Context, name string) {
	counter, err := w.maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		return
	}
	for n := 1; ; n++ {
		one := fmt.Sprintf("%s-%d", name, n)
		if _, err := w.maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: one}}, metav1.CreateOptions{}); err != nil {
			return
		}
		w.acknowledged("create", one, n)
		counter.Data = map[string]string{"n": strconv.Itoa(n)}
		if counter, err = w.maps.Update(ctx, counter, metav1.UpdateOptions{}); err != nil {
			return
		}
		w.acknowledged("update", name, n)
		if n%3 > 0 {
			continue
		}
		w.note("deleting", one) // from here on it may be gone
		if err := w.maps.Delete(ctx, one, metav1.DeleteOptions{}); err != nil {
			return
		}
		w.acknowledged("delete", one, n)
	}
}

func (w *writer) note(verb, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintln(w.file, verb, name, 0)
}

func checkWrites(maps typedcorev1.ConfigMapInterface, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	last, value := map[string]string{}, map[string]int{}
	total := 0
	for s := bufio.NewScanner(file); s.Scan(); {
		f := strings.Fields(s.Text())
		last[f[1]] = f[0]
		if n, _ := strconv.Atoi(f[2]); f[0] != "deleting" {
			value[f[1]] = n
			total++
		}
	}
	lost := 0
	for name, verb := range last {
		got, err := maps.Get(context.Background(), name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		n := 0
		if err == nil {
			n, _ = strconv.Atoi(got.Data["n"])
		}
		switch {
		case verb == "create" && err != nil, verb == "delete" && err == nil, verb == "update" && (err != nil || n < value[name]):
			fmt.Printf("lost: %s of %s (%d), the server has %d, error %v\n", verb, name, value[name], n, err)
			lost++
		}
	}
	fmt.Printf("%d acknowledged, %d lost\n", total, lost)
	return nil
}
