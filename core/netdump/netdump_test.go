// SPDX-License-Identifier: Apache-2.0

package netdump

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestAnInterruptedListIsAskedForAgain(t *testing.T) {
	asked := 0
	all, err := Whole(func() ([]int, error) {
		if asked++; asked < 4 {
			return []int{1}, fmt.Errorf("of links: %w", netlink.ErrDumpInterrupted)
		}
		return []int{1, 2}, nil
	})
	if err != nil || len(all) != 2 || asked != 4 {
		t.Errorf("asked %d times: %v, %v", asked, all, err)
	}
}

func TestOtherErrorsEndIt(t *testing.T) {
	asked := 0
	_, err := Whole(func() ([]int, error) {
		asked++
		return nil, os.ErrPermission
	})
	if !errors.Is(err, os.ErrPermission) || asked != 1 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}

func TestAListThatIsNeverWholeIsNone(t *testing.T) {
	all, err := Whole(func() ([]int, error) { return []int{1}, netlink.ErrDumpInterrupted })
	if all != nil || err == nil || !strings.Contains(err.Error(), "changed during each of") {
		t.Errorf("%v, %v", all, err)
	}
}

func TestThisMachine(t *testing.T) {
	links, err := Links()
	if err != nil || len(links) == 0 {
		t.Fatalf("%d links: %v", len(links), err)
	}
	if _, err := Addresses(links[0], netlink.FAMILY_ALL); err != nil {
		t.Error(err)
	}
	if _, err := Neighbors(links[0].Attrs().Index, netlink.FAMILY_V4); err != nil {
		t.Error(err)
	}
	if _, err := Routes(netlink.FAMILY_V4, &netlink.Route{}, 0); err != nil {
		t.Error(err)
	}
}
