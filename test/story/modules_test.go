// SPDX-License-Identifier: Apache-2.0

package story

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
)

// serveModules is a server of modules over TLS: modules FOLDER. It tells where it is,
// and its authority as PEM on one line.
func serveModules() {
	s := httptest.NewTLSServer(http.FileServer(http.Dir(os.Args[1])))
	defer s.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	fmt.Printf("modules at %s by %s\n", s.URL, strings.ReplaceAll(string(authority), "\n", `\n`))
	select {}
}
