/* Log lines to stderr. One line is one write(), so that lines of several threads and processes never mix. Control
 * characters are replaced: names of files and models come from outside and must not forge a line of their own or
 * drive a terminal. There is no file, no rotation, no socket: that is journald's work. */
#include "common/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>

#define LOG_LINE_MAX 2048

static struct {
        char ident[32];
        bool with_prefix; /* "<3>": for the journal, which reads the level from it */
        bool with_ident;  /* the journal knows who writes */
        _Atomic int level;
} log_state = { .with_prefix = true, .with_ident = true, .level = TDM_LOG_INFO };

/* systemd sets JOURNAL_STREAM=device:inode; stderr may have been redirected since. */
static bool stderr_is_journal(void)
{
        const char *e = getenv("JOURNAL_STREAM");
        unsigned long long dev, ino;
        struct stat st;

        if (!e || sscanf(e, "%llu:%llu", &dev, &ino) != 2 || fstat(STDERR_FILENO, &st) < 0)
                return false;
        return st.st_dev == dev && st.st_ino == ino;
}

/* Workers do not get the variable. What they inherit from a service is a socket, as the journal's streams are. Files
 * and terminals are read by people. */
static bool wants_prefix(void)
{
        struct stat st;

        return stderr_is_journal() || (fstat(STDERR_FILENO, &st) == 0 && S_ISSOCK(st.st_mode));
}

static const struct {
        const char *name;
        enum tdm_log_level level;
} level_names[] = {
        { "error", TDM_LOG_ERROR },
        { "warning", TDM_LOG_WARNING },
        { "info", TDM_LOG_INFO },
        { "debug", TDM_LOG_DEBUG },
};

int tdm_log_level_from_name(const char *name)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(level_names); i++)
                if (strcmp(name, level_names[i].name) == 0)
                        return (int)level_names[i].level;
        return -EINVAL;
}

const char *tdm_log_level_name(enum tdm_log_level level)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(level_names); i++)
                if (level_names[i].level == level)
                        return level_names[i].name;
        return "unknown";
}

void tdm_log_init(const char *ident)
{
        const char *e = getenv("TANDEM_LOG");
        int level;

        snprintf(log_state.ident, sizeof(log_state.ident), "%s", ident ? ident : "");
        log_state.with_prefix = wants_prefix();
        log_state.with_ident = !stderr_is_journal();
        if (!e || !*e)
                return;
        level = tdm_log_level_from_name(e);
        if (level >= 0)
                tdm_log_set_level((enum tdm_log_level)level);
        else
                tdm_log_warning("TANDEM_LOG=%s is not a level; use error, warning, info or debug", e);
}

void tdm_log_set_level(enum tdm_log_level level)
{
        /* Relaxed: the level publishes no other data, and a line more or less during the change does not matter. */
        atomic_store_explicit(&log_state.level, (int)level, memory_order_relaxed);
}

bool tdm_log_enabled(enum tdm_log_level level)
{
        return (int)level <= atomic_load_explicit(&log_state.level, memory_order_relaxed);
}

void tdm_log(enum tdm_log_level level, const char *fmt, ...)
{
        char line[LOG_LINE_MAX];
        int saved = errno;
        size_t len = 0, done = 0;
        va_list args;
        int n;

        if (!tdm_log_enabled(level))
                return;

        if (log_state.with_prefix)
                len += (size_t)snprintf(line, sizeof(line), "<%d>", (int)level);
        if (log_state.with_ident && log_state.ident[0])
                len += (size_t)snprintf(line + len, sizeof(line) - len, "%s: ", log_state.ident);

        errno = saved; /* for %m */
        va_start(args, fmt);
        n = vsnprintf(line + len, sizeof(line) - len - 1, fmt, args);
        va_end(args);
        if (n > 0) {
                size_t start = len;
                len = TDM_MIN(len + (size_t)n, sizeof(line) - 2);
                for (size_t i = start; i < len; i++)
                        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
                                line[i] = line[i] == '\t' ? ' ' : '?';
        }
        line[len++] = '\n';

        while (done < len) {
                ssize_t w = write(STDERR_FILENO, line + done, len - done);
                if (w < 0 && errno == EINTR)
                        continue;
                if (w <= 0)
                        break; /* a log that cannot be written cannot be reported */
                done += (size_t)w;
        }
        errno = saved;
}
