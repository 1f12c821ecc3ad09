#include "common/stint.h"

#include <fcntl.h>
#include <unistd.h>

/* The second number of schedstat. A wait is counted when it is over, and this thread runs now, so it has all. */
static uint64_t thread_waited_ns(void)
{
        _cleanup_(closep) int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
        unsigned long long ran, waited;
        char text[80];
        ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

        if (n <= 0)
                return 0;
        text[n] = '\0';
        return sscanf(text, "%llu %llu", &ran, &waited) == 2 ? waited : 0;
}

void tdm_stint_begin(struct tdm_stint *stint)
{
        stint->waited_ns = thread_waited_ns();
        stint->begin_ns = tdm_now_ns();
}

uint64_t tdm_stint_ns(const struct tdm_stint *stint)
{
        uint64_t passed_ns = tdm_now_ns() - stint->begin_ns, waited_ns = thread_waited_ns();

        return passed_ns - TDM_MIN(passed_ns, waited_ns - TDM_MIN(waited_ns, stint->waited_ns));
}
