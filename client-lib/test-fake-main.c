/* The fake daemon as a program: test-fake-daemon SOCKET. Forks for each connection; logs requests to standard output.
 * Ends when standard input does, so that it never outlives the test that started it. */
#include "client-lib/test-fake-daemon.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

int main(int argc, char **argv)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        struct fake_config config = FAKE_CONFIG_INIT;
        int listen_fd;

        if (argc != 2 || strlen(argv[1]) >= sizeof(address.sun_path))
                return 2;
        signal(SIGCHLD, SIG_IGN);
        strcpy(address.sun_path, argv[1]);
        listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(listen_fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(listen_fd, 64) < 0)
                return 1;
        puts("{\"request\":\"listening\"}");
        fflush(stdout);
        config.log = stdout;
        for (;;) {
                struct pollfd fds[] = { { .fd = listen_fd, .events = POLLIN },
                                        { .fd = STDIN_FILENO, .events = POLLIN } };
                int fd;

                (void)poll(fds, 2, -1);
                if (fds[1].revents)
                        return 0;
                if (!fds[0].revents)
                        continue;
                fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
                if (fd < 0)
                        return 1;
                if (fork() == 0) {
                        close(listen_fd);
                        (void)fake_serve(fd, &config);
                        _exit(0);
                }
                close(fd);
        }
}
