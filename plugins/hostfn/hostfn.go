// Package hostfn holds the host functions that an operator can grant to a plugin,
// and makes of an entry's grants the set that the plugin gets. What is not
// granted is not in the set: the host refuses it by name.
package hostfn

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// The names under which plugins call.
const (
	Log    = "log"          // {"level": "info", "message": "..."} -> nothing
	Now    = "clock.now"    // nothing -> nanoseconds since 1970, as a decimal number
	Random = "random.bytes" // how many (at most 4096), as a decimal number -> that many bytes
)

// Grant names the field of an entry's grants that opens a function; "" where there is no such function.
func Grant(name string) string {
	return map[string]string{Log: "log", Now: "clock", Random: "random"}[name]
}

// Set makes the functions that an entry grants. Log records carry the plugin's name.
func Set(e *manifest.Entry, logger *slog.Logger) map[string]host.Func {
	set := map[string]host.Func{}
	if e.Grants.Log {
		set[Log] = logTo(logger.With("plugin", e.Name))
	}
	if e.Grants.Clock {
		set[Now] = func(context.Context, []byte) ([]byte, error) {
			return strconv.AppendInt(nil, time.Now().UnixNano(), 10), nil
		}
	}
	if e.Grants.Random {
		set[Random] = randomBytes
	}
	return set
}

func randomBytes(_ context.Context, input []byte) ([]byte, error) {
	n, err := strconv.Atoi(string(input))
	if err != nil || n < 0 || n > 4096 {
		return nil, fmt.Errorf("%q is no number of bytes from 0 to 4096", input)
	}
	b := make([]byte, n)
	_, err = rand.Read(b)
	return b, err
}

const longestMessage = 4096

func logTo(logger *slog.Logger) host.Func {
	return func(ctx context.Context, input []byte) ([]byte, error) {
		var record struct {
			Level   slog.Level `json:"level"`
			Message string     `json:"message"`
		}
		if err := json.Unmarshal(input, &record); err != nil {
			return nil, fmt.Errorf("a log record was expected: %w", err)
		}
		if len(record.Message) > longestMessage {
			record.Message = record.Message[:longestMessage] + "..."
		}
		logger.Log(ctx, record.Level, "a plugin says", "message", record.Message)
		return nil, nil
	}
}
