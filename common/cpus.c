/* Lists of CPUs: numbers and ranges, separated by commas, as cpusets and taskset write them. Spaces are not taken, so
 * that a list that was cut somewhere is not read as a shorter one. */
#include "common/cpus.h"

#include "common/util.h"

static int parse_cpu(const char **p, unsigned *ret)
{
        unsigned n = 0, digits = 0;

        for (; **p >= '0' && **p <= '9' && digits < 6; (*p)++, digits++)
                n = n * 10 + (unsigned)(**p - '0');
        if (digits == 0 || n >= CPU_SETSIZE)
                return -EINVAL;
        *ret = n;
        return 0;
}

int tdm_cpus_parse(const char *text, cpu_set_t *ret, char *why, size_t why_size)
{
        const char *p = text;
        cpu_set_t set;

        CPU_ZERO(&set);
        for (;;) {
                unsigned first, last;

                if (parse_cpu(&p, &first) < 0)
                        break;
                last = first;
                if (*p == '-') {
                        p++;
                        if (parse_cpu(&p, &last) < 0 || last < first)
                                break;
                }
                for (unsigned cpu = first; cpu <= last; cpu++)
                        CPU_SET(cpu, &set);
                if (!*p) {
                        *ret = set;
                        return 0;
                }
                if (*p++ != ',')
                        break;
        }
        snprintf(why, why_size, "\"%.60s\" is not a list of CPUs below %d like 0,2-5", text, CPU_SETSIZE);
        return -EINVAL;
}

void tdm_cpus_format(const cpu_set_t *set, char *text, size_t size)
{
        size_t n = 0;

        text[0] = '\0';
        for (int first = 0; first < CPU_SETSIZE && n + 1 < size; first++) {
                int last = first, r;

                if (!CPU_ISSET(first, set))
                        continue;
                while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set))
                        last++;
                if (last > first)
                        r = snprintf(text + n, size - n, "%s%d-%d", n ? "," : "", first, last);
                else
                        r = snprintf(text + n, size - n, "%s%d", n ? "," : "", first);
                n += (size_t)TDM_MAX(r, 0);
                first = last;
        }
}
