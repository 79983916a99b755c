// SPDX-License-Identifier: Apache-2.0

// A server by wasi-libc: it answers every connection with what it sends, and ends when one sends "end".
// Its argument is the descriptor of its socket.

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 64 };

static int fail(const char *what) {
	perror(what);
	return 1;
}

int main(int argc, char **argv) {
	struct pollfd fds[MOST] = {{.fd = argc > 1 ? atoi(argv[1]) : 3, .events = POLLIN}};
	int n = 1;
	if (fcntl(fds[0].fd, F_SETFL, O_NONBLOCK) < 0)
		return fail("fcntl");
	for (;;) {
		if (poll(fds, n, -1) < 1)
			return fail("poll");
		for (int i = n - 1; i > 0; i--) {
			char text[100];
			int waiting = 0;
			if (!fds[i].revents)
				continue;
			if (ioctl(fds[i].fd, FIONREAD, &waiting) < 0)
				return fail("ioctl");
			ssize_t got = recv(fds[i].fd, text, sizeof text, 0);
			if (got < 0 || got < waiting && got < (ssize_t)sizeof text)
				return fail("recv");
			if (got >= 3 && !memcmp(text, "end", 3))
				return 0;
			if (got > 0 && send(fds[i].fd, text, got, 0) == got)
				continue;
			shutdown(fds[i].fd, SHUT_RDWR);
			close(fds[i].fd);
			fds[i] = fds[--n];
		}
		if (fds[0].revents && n < MOST) {
			int c = accept(fds[0].fd, NULL, NULL);
			if (c < 0)
				return fail("accept");
			fds[n++] = (struct pollfd){.fd = c, .events = POLLIN};
		}
	}
}
