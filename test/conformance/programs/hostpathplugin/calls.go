// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// calls writes each call and its answer as one line, which the suite reads in the
// container's log.
type calls struct {
	to     io.Writer
	logger *slog.Logger
}

// call has the names that the suite expects.
type call struct {
	Method            string
	Request, Response any
	Error             string
	FullError         *fullError
}

type fullError struct {
	Code    codes.Code `json:"code"`
	Message string     `json:"message"`
}

func (c calls) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	// Before the call, which may change the request.
	asked, err := json.Marshal(request)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	answer, err := handle(ctx, request)
	line := call{Method: info.FullMethod, Request: json.RawMessage(asked), Response: answer}
	if err != nil {
		s := status.Convert(err)
		line.Error, line.FullError = err.Error(), &fullError{Code: s.Code(), Message: s.Message()}
	}
	text, encodeErr := json.Marshal(line)
	if encodeErr != nil {
		c.logger.ErrorContext(ctx, "a call cannot be logged", "method", info.FullMethod, "error", encodeErr)
	} else {
		fmt.Fprintf(c.to, "gRPCCall: %s\n", text) //nolint:errcheck // a log
	}
	return answer, err
}
