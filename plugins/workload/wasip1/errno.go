// SPDX-License-Identifier: Apache-2.0

package wasip1

import (
	"errors"
	"syscall"

	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"
)

// errno is an error number of WASI.
type errno uint16

// The numbers that are answered by name.
const (
	success errno = 0
	again   errno = 6
	badf    errno = 8
	fault   errno = 21
	inval   errno = 28
	eio     errno = 29
	notsock errno = 57
	notsup  errno = 58
)

// ofSystem are WASI's numbers of the errors of sockets and files.
var ofSystem = map[syscall.Errno]errno{
	syscall.E2BIG: 1, syscall.EACCES: 2, syscall.EADDRINUSE: 3, syscall.EADDRNOTAVAIL: 4, syscall.EAFNOSUPPORT: 5, syscall.EAGAIN: again,
	syscall.EALREADY: 7, syscall.EBADF: badf, syscall.EBUSY: 10, syscall.ECANCELED: 11, syscall.ECONNABORTED: 13, syscall.ECONNREFUSED: 14,
	syscall.ECONNRESET: 15, syscall.EDQUOT: 19, syscall.EEXIST: 20, syscall.EFAULT: fault, syscall.EFBIG: 22, syscall.EHOSTUNREACH: 23,
	syscall.EINTR: 27, syscall.EINVAL: inval, syscall.EIO: eio, syscall.EISDIR: 31, syscall.ELOOP: 32, syscall.EMFILE: 33,
	syscall.EMSGSIZE: 35, syscall.ENAMETOOLONG: 37, syscall.ENETDOWN: 38, syscall.ENETRESET: 39, syscall.ENETUNREACH: 40, syscall.ENFILE: 41,
	syscall.ENOBUFS: 42, syscall.ENOENT: 44, syscall.ENOMEM: 48, syscall.ENOSPC: 51, syscall.ENOSYS: 52, syscall.ENOTCONN: 53,
	syscall.ENOTDIR: 54, syscall.ENOTEMPTY: 55, syscall.ENOTSOCK: notsock, syscall.EOPNOTSUPP: notsup, syscall.EPERM: 63, syscall.EPIPE: 64,
	syscall.EPROTO: 65, syscall.ERANGE: 68, syscall.EROFS: 69, syscall.ESPIPE: 70, syscall.ETIMEDOUT: 73, syscall.ETXTBSY: 74,
}

// ofEngine are those of the errors that the engine's files have.
var ofEngine = map[experimentalsys.Errno]errno{
	experimentalsys.EACCES: 2, experimentalsys.EAGAIN: again, experimentalsys.EBADF: badf, experimentalsys.EEXIST: 20,
	experimentalsys.EFAULT: fault, experimentalsys.EINTR: 27, experimentalsys.EINVAL: inval, experimentalsys.EIO: eio,
	experimentalsys.EISDIR: 31, experimentalsys.ELOOP: 32, experimentalsys.ENAMETOOLONG: 37, experimentalsys.ENOENT: 44,
	experimentalsys.ENOSYS: 52, experimentalsys.ENOTDIR: 54, experimentalsys.ERANGE: 68, experimentalsys.ENOTEMPTY: 55,
	experimentalsys.ENOTSOCK: notsock, experimentalsys.ENOTSUP: notsup, experimentalsys.EPERM: 63, experimentalsys.EROFS: 69,
}

// numberFor is WASI's number of an error of the system.
func numberFor(err error) errno {
	if err == nil {
		return success
	}
	var e syscall.Errno
	if errors.As(err, &e) {
		if n, ok := ofSystem[e]; ok {
			return n
		}
	}
	return eio
}

// numberOf is WASI's number of an error of the engine's.
func numberOf(e experimentalsys.Errno) errno {
	if e == 0 {
		return success
	}
	if n, ok := ofEngine[e]; ok {
		return n
	}
	return eio
}
