// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/wasmplane/wasmplane/test/internal/harness"
	"github.com/wasmplane/wasmplane/test/internal/inventory"
)

// takeInventory is a program of the stories of upgrades:
//
//	inventory KUBECONFIG FILE [SERVER]   write down all objects; where FILE is there, fail if one of its objects
//	                                     is lost or changed
func takeInventory() {
	if len(os.Args) < 3 {
		log.Fatal("usage: inventory KUBECONFIG FILE [SERVER]")
	}
	if err := compareInventory(os.Args[1], os.Args[2], os.Args[3:]...); err != nil {
		log.Fatal(err)
	}
}

func compareInventory(kubeconfig, file string, server ...string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	if len(server) > 0 {
		cfg.Host, cfg.ServerName = "https://"+server[0], "kubernetes"
	}
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	is, err := inventory.Take(ctx, cfg)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		if text, err = json.Marshal(is); err != nil {
			return err
		}
		fmt.Printf("%d objects\n", len(is))
		return os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		return err
	}
	var was inventory.Inventory
	if err := json.Unmarshal(text, &was); err != nil {
		return err
	}
	if err := was.Compare(is); err != nil {
		return err
	}
	fmt.Printf("all %d objects are as they were\n", len(was))
	return nil
}
