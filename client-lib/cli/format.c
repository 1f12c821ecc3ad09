/* Numbers and names for people. */
#include "client-lib/cli/cli.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <pwd.h>
#include <wchar.h>

int text_columns(const char *text)
{
        mbstate_t state = { 0 };
        int columns = 0;

        while (*text) {
                wchar_t c;
                size_t n = mbrtowc(&c, text, strlen(text), &state);

                if (n == (size_t)-1 || n == (size_t)-2) { /* shown as one mark */
                        state = (mbstate_t){ 0 };
                        c = L'?';
                        n = 1;
                }
                columns += TDM_MAX(wcwidth(c), 0);
                text += n;
        }
        return columns;
}

const char *human_bytes(uint64_t bytes)
{
        static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
        static char ring[8][24];
        static unsigned next;
        char *to = ring[next++ % TDM_ARRAY_SIZE(ring)];
        double value = (double)bytes;
        unsigned unit = 0;

        while (value >= 1000 && unit + 1 < TDM_ARRAY_SIZE(units)) {
                value /= 1024;
                unit++;
        }
        snprintf(to, sizeof(ring[0]), unit == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value, units[unit]);
        return to;
}

const char *format_picture_tokens(const struct tandem_result *result)
{
        static char text[40];

        text[0] = '\0';
        if (result->picture_tokens > 0)
                snprintf(text, sizeof(text), ", %" PRIu32 " of pictures", result->picture_tokens);
        return text;
}

void format_rate(char *to, size_t size, double rate)
{
        if (!isfinite(rate) || rate < 0)
                snprintf(to, size, "?");
        else
                snprintf(to, size, rate < 10 ? "%.1f" : "%.0f", rate);
}

void format_count(char *to, size_t size, uint64_t count)
{
        char digits[24];
        size_t n = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, count), used = 0;

        for (size_t i = 0; i < n && used + 2 < size; i++) {
                if (i > 0 && (n - i) % 3 == 0)
                        to[used++] = ',';
                to[used++] = digits[i];
        }
        to[used] = '\0';
}

void format_duration(char *to, size_t size, double seconds)
{
        uint64_t s = seconds > 0 && seconds < 1e15 ? (uint64_t)seconds : 0;

        if (s < 120)
                snprintf(to, size, "%.*f s", seconds < 10 ? 1 : 0, seconds >= 0 && seconds < 120 ? seconds : 0.0);
        else if (s < 7200)
                snprintf(to, size, "%" PRIu64 " min", s / 60);
        else if (s < 172800)
                snprintf(to, size, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
        else
                snprintf(to, size, "%" PRIu64 " days", s / 86400);
}

const char *name_users(const char *text)
{
        static char named[1200];
        static const char word[] = "user ";
        size_t used = 0;

        while (*text && used + 1 < sizeof(named)) {
                unsigned long uid = 0;
                char *end = NULL;
                int n;

                if (strncmp(text, word, sizeof(word) - 1) == 0 && isdigit((unsigned char)text[sizeof(word) - 1]))
                        uid = strtoul(text + sizeof(word) - 1, &end, 10);
                if (!end || uid >= UINT32_MAX || isalnum((unsigned char)*end)) {
                        named[used++] = *text++;
                        continue;
                }
                n = snprintf(named + used, sizeof(named) - used, "%s%s", word, user_name((uint32_t)uid));
                used = TDM_MIN(used + (size_t)n, sizeof(named) - 1);
                text = end;
        }
        named[used] = '\0';
        return named;
}

const char *user_name(uint32_t uid)
{
        static char number[16];
        const struct passwd *pw = getpwuid(uid);

        if (pw)
                return pw->pw_name;
        snprintf(number, sizeof(number), "%" PRIu32, uid);
        return number;
}
