/* See report.h. A sensor that cannot be read is left out: many are root's. */
#include "client-lib/cli/report/report.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>

static bool read_sensor_text(const char *root, const char *path, char *to, size_t size)
{
        char whole[700];
        ssize_t n;
        int fd;

        snprintf(whole, sizeof(whole), "%s%s", root, path);
        fd = open(whole, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
                return false;
        n = read(fd, to, size - 1);
        close(fd);
        to[TDM_MAX(n, 0)] = '\0';
        to[strcspn(to, "\n")] = '\0';
        return n > 0;
}

static bool read_number(const char *root, const char *path, uint64_t *ret)
{
        char text[64], *end;
        long long v;

        if (!read_sensor_text(root, path, text, sizeof(text)))
                return false;
        v = strtoll(text, &end, 10);
        if (end == text || v < 0)
                return false;
        *ret = (uint64_t)v;
        return true;
}

static struct sensor *add_sensor(struct sensors *s, enum sensor_kind kind, const char *name, const char *unit,
                                 double scale)
{
        struct sensor *sensor;

        if (s->n == MAX_SENSORS)
                return NULL;
        sensor = &s->sensors[s->n++];
        *sensor = (struct sensor){ .kind = kind, .unit = unit, .scale = scale, .min = INFINITY, .max = -INFINITY };
        snprintf(sensor->name, sizeof(sensor->name), "%.60s", name);
        return sensor;
}

/* A file of the kernel that holds a number now. */
static void try_file(struct sensors *s, enum sensor_kind kind, const char *name, const char *unit, double scale,
                     const char *path)
{
        struct sensor *sensor;
        uint64_t value;

        if (!read_number(s->root, path, &value))
                return;
        sensor = add_sensor(s, kind, name, unit, scale);
        if (sensor)
                snprintf(sensor->path, sizeof(sensor->path), "%.300s", path);
}

/* Calls fn for each name in a folder, in the order of their bytes. */
static void each_sensor_folder(struct sensors *s, const char *folder, const char *prefix,
                               void (*fn)(struct sensors *s, const char *path))
{
        char whole[512], path[512];
        struct dirent **names;
        int n;

        snprintf(whole, sizeof(whole), "%s%s", s->root, folder);
        n = scandir(whole, &names, NULL, alphasort);
        for (int i = 0; i < n; i++) {
                if (strncmp(names[i]->d_name, prefix, strlen(prefix)) == 0) {
                        snprintf(path, sizeof(path), "%.200s/%.200s", folder, names[i]->d_name);
                        fn(s, path);
                }
                free(names[i]);
        }
        if (n >= 0)
                free(names);
}

static void find_hwmon(struct sensors *s, const char *folder)
{
        static const struct {
                const char *file, *what, *unit;
                double scale;
        } known[] = {
                { "temp1_input", "", "C", 1e-3 },
                { "power1_average", " power", "W", 1e-6 },
                { "power1_input", " power", "W", 1e-6 },
                { "freq1_input", " clock", "MHz", 1e-6 },
        };
        char chip[40], name[80], path[512];

        snprintf(path, sizeof(path), "%.400s/name", folder);
        if (!read_sensor_text(s->root, path, chip, sizeof(chip)))
                return;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(known); i++) {
                snprintf(path, sizeof(path), "%.400s/%s", folder, known[i].file);
                snprintf(name, sizeof(name), "%s%s", chip, i == 0 ? " temperature" : known[i].what);
                try_file(s, SENSOR_VALUE, name, known[i].unit, known[i].scale, path);
        }
}

static void find_powercap(struct sensors *s, const char *folder)
{
        char domain[40], name[80], path[512];

        snprintf(path, sizeof(path), "%.400s/name", folder);
        if (!read_sensor_text(s->root, path, domain, sizeof(domain)))
                return;
        snprintf(path, sizeof(path), "%.400s/energy_uj", folder);
        snprintf(name, sizeof(name), "%s power (RAPL)", domain);
        try_file(s, SENSOR_ENERGY, name, "W", 1e-6, path);
}

static void find_battery(struct sensors *s, const char *folder)
{
        char path[512];

        snprintf(path, sizeof(path), "%.400s/power_now", folder);
        try_file(s, SENSOR_VALUE, "battery power", "W", 1e-6, path);
}

static bool mean_clock(const struct sensors *s, double *ret)
{
        char path[128];
        uint64_t khz;
        double sum = 0;
        unsigned n = 0;

        for (unsigned cpu = 0; cpu < 1024; cpu++) {
                snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%u/cpufreq/scaling_cur_freq", cpu);
                if (!read_number(s->root, path, &khz))
                        break;
                sum += (double)khz;
                n++;
        }
        *ret = n > 0 ? sum / n / 1e3 : 0;
        return n > 0;
}

void sensors_find(struct sensors *s, const char *root)
{
        double clock;

        *s = (struct sensors){ .root = root };
        if (mean_clock(s, &clock))
                (void)add_sensor(s, SENSOR_CLOCKS, "CPU clock, mean of all", "MHz", 1);
        each_sensor_folder(s, "/sys/class/hwmon", "hwmon", find_hwmon);
        each_sensor_folder(s, "/sys/class/powercap", "intel-rapl:", find_powercap);
        each_sensor_folder(s, "/sys/class/power_supply", "BAT", find_battery);
}

void sensors_add_process(struct sensors *s, const char *name, uint64_t pid)
{
        char what[64];
        struct sensor *sensor;

        if (pid == 0)
                return;
        snprintf(what, sizeof(what), "CPU of %.40s", name);
        sensor = add_sensor(s, SENSOR_CPU, what, "% of one", 100);
        if (sensor)
                snprintf(sensor->path, sizeof(sensor->path), "/proc/%llu/stat", (unsigned long long)pid);
}

static void take_reading(struct sensor *sensor, double value)
{
        sensor->min = fmin(sensor->min, value);
        sensor->max = fmax(sensor->max, value);
        sensor->sum += value;
        sensor->n++;
}

void sensors_tell(struct sensors *s, const char *name, const char *unit, double value)
{
        struct sensor *sensor = NULL;

        for (size_t i = 0; i < s->n && !sensor; i++)
                if (s->sensors[i].path[0] == '\0' && strcmp(s->sensors[i].name, name) == 0)
                        sensor = &s->sensors[i];
        if (!sensor)
                sensor = add_sensor(s, SENSOR_VALUE, name, unit, 1);
        if (sensor)
                take_reading(sensor, value);
}

/* The ticks that a process has computed: fields 14 and 15, counted behind the name, which may hold anything. */
static bool read_ticks(const char *root, const char *path, uint64_t *ret)
{
        unsigned long long user, system;
        char text[1024], *p;

        if (!read_sensor_text(root, path, text, sizeof(text)) || !(p = strrchr(text, ')')))
                return false;
        if (sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) != 2)
                return false;
        *ret = user + system;
        return true;
}

void sensors_sample(struct sensors *s, uint64_t now_ns)
{
        long ticks = sysconf(_SC_CLK_TCK);

        for (size_t i = 0; i < s->n; i++) {
                struct sensor *sensor = &s->sensors[i];
                double scale = sensor->scale, clock;
                uint64_t value;
                bool counts = sensor->kind == SENSOR_ENERGY || sensor->kind == SENSOR_CPU;

                if (sensor->kind == SENSOR_CLOCKS) {
                        if (mean_clock(s, &clock))
                                take_reading(sensor, clock);
                        continue;
                }
                if (!sensor->path[0])
                        continue;
                if (sensor->kind == SENSOR_CPU ? !read_ticks(s->root, sensor->path, &value) :
                                                 !read_number(s->root, sensor->path, &value)) {
                        sensor->has_last = false;
                        continue;
                }
                if (!counts) {
                        take_reading(sensor, (double)value * scale);
                        continue;
                }
                if (sensor->kind == SENSOR_CPU)
                        scale /= (double)ticks;
                /* A counter that went down has begun anew. */
                if (sensor->has_last && value >= sensor->last && now_ns > sensor->last_ns)
                        take_reading(sensor,
                                     (double)(value - sensor->last) * scale * 1e9 / (double)(now_ns - sensor->last_ns));
                sensor->last = value;
                sensor->last_ns = now_ns;
                sensor->has_last = true;
        }
}

void sensors_write(const struct sensors *s, struct buf *to)
{
        buf_printf(to, "| what | unit | least | mean | most |\n|---|---|---|---|---|\n");
        for (size_t i = 0; i < s->n; i++) {
                const struct sensor *sensor = &s->sensors[i];

                if (sensor->n > 0)
                        buf_printf(to, "| %s | %s | %.1f | %.1f | %.1f |\n", term_safe(sensor->name), sensor->unit,
                                   sensor->min, sensor->sum / sensor->n, sensor->max);
        }
}
