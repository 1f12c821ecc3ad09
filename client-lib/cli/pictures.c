/* See pictures.h. */
#include "client-lib/cli/pictures.h"
#include "client-lib/cli/typed-path.h"

#include <fcntl.h>
#include <sys/stat.h>

#define HEAD_BYTES 16u
#define MAX_LOOKS 64u /* at files that a line may name */

const char *picture_kind(const void *head, size_t size, const char **ret_other)
{
        static const struct {
                const char *kind;
                bool taken;
                size_t at, n;
                const char *bytes;
        } kinds[] = {
                { "PNG", true, 0, 8, "\x89PNG\r\n\x1a\n" },
                { "JPEG", true, 0, 3, "\xff\xd8\xff" },
                { "WebP", true, 8, 4, "WEBP" },
                { "GIF", false, 0, 4, "GIF8" },
                { "TIFF", false, 0, 4, "II*\0" },
                { "TIFF", false, 0, 4, "MM\0*" },
                { "AVIF", false, 4, 8, "ftypavif" },
                { "HEIC", false, 4, 7, "ftyphei" },
                { "JPEG XL", false, 4, 4, "JXL " },
        };

        if (ret_other)
                *ret_other = NULL;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(kinds); i++) {
                if (size < kinds[i].at + kinds[i].n ||
                    memcmp((const char *)head + kinds[i].at, kinds[i].bytes, kinds[i].n) != 0 ||
                    (kinds[i].at == 8 && memcmp(head, "RIFF", 4) != 0))
                        continue;
                if (kinds[i].taken)
                        return kinds[i].kind;
                if (ret_other)
                        *ret_other = kinds[i].kind;
        }
        return NULL;
}

static const char *file_name(const char *path)
{
        const char *slash = strrchr(path, '/');

        return slash && slash[1] ? slash + 1 : path;
}

static struct cli_picture *lack_memory(void)
{
        complain("no memory for pictures");
        return NULL;
}

struct cli_picture *cli_picture_new(struct buf *file, const char *path)
{
        const char *name = file_name(path), *other, *kind = picture_kind(file->data, file->size, &other);
        struct cli_picture *p;

        if (!kind) {
                if (file->size == 0)
                        complain("%s is empty, and no picture", path);
                else if (other)
                        complain("%s is a %s: pictures are PNG, JPEG or WebP", path, other);
                else
                        complain("%s is no picture: its first bytes are not those of PNG, JPEG or WebP", path);
                return NULL;
        }
        p = malloc(sizeof(*p) + strlen(name) + 1);
        if (!p)
                return lack_memory();
        *p = (struct cli_picture){ .n_refs = 1, .kind = kind, .file = *file };
        memcpy(p->name, name, strlen(name) + 1);
        *file = (struct buf){ 0 };
        return p;
}

/* Of a pipe, too: a shell's <(…) is one. */
static bool read_file(int fd, const char *path, struct buf *ret)
{
        char chunk[16384];
        ssize_t n;

        for (;;) {
                n = read(fd, chunk, sizeof(chunk));
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0) {
                        complain("cannot read the picture %s: %s", path, strerror(errno));
                        return false;
                }
                if (n == 0)
                        break;
                if ((size_t)n > MAX_PICTURES_BYTES - ret->size) {
                        complain("the picture %s is too large: a request has room for 8 MiB of pictures", path);
                        return false;
                }
                buf_add(ret, chunk, (size_t)n);
        }
        buf_add(ret, "", 0);
        if (ret->failed)
                lack_memory();
        return !ret->failed;
}

struct cli_picture *cli_picture_read(const char *path)
{
        _cleanup_(buf_freep) struct buf file = { 0 };
        _cleanup_(closep) int opened = -1;
        bool is_stdin = strcmp(path, "-") == 0;
        const char *shown = is_stdin ? "standard input" : path;
        struct stat st;

        if (!is_stdin) {
                opened = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
                if (opened < 0) {
                        complain("cannot open the picture %s: %s", path, strerror(errno));
                        return NULL;
                }
        }
        if (fstat(is_stdin ? STDIN_FILENO : opened, &st) == 0 && S_ISDIR(st.st_mode)) {
                complain("%s is a folder, and no picture", path);
                return NULL;
        }
        if (!read_file(is_stdin ? STDIN_FILENO : opened, shown, &file))
                return NULL;
        return cli_picture_new(&file, shown);
}

void cli_picture_unref(struct cli_picture *picture)
{
        if (!picture || --picture->n_refs > 0)
                return;
        buf_free(&picture->file);
        free(picture);
}

const char *picture_text(const struct cli_picture *picture)
{
        static char ring[2][320];
        static unsigned next;
        char *to = ring[next++ % TDM_ARRAY_SIZE(ring)];

        snprintf(to, sizeof(ring[0]), "%s (%s, %s)", term_safe(picture->name), picture->kind,
                 human_bytes(picture->file.size));
        return to;
}

bool cli_pictures_add(struct cli_pictures *to, struct cli_picture *picture, size_t offset)
{
        struct cli_placed_picture *items = realloc(to->items, (to->n + 1) * sizeof(*items));

        if (!items) {
                cli_picture_unref(picture);
                lack_memory();
                return false;
        }
        to->items = items;
        items[to->n++] = (struct cli_placed_picture){ .picture = picture, .offset = offset };
        return true;
}

bool cli_pictures_add_all(struct cli_pictures *to, const struct cli_pictures *from)
{
        for (size_t i = 0; i < from->n; i++) {
                from->items[i].picture->n_refs++;
                if (!cli_pictures_add(to, from->items[i].picture, from->items[i].offset))
                        return false;
        }
        return true;
}

const char *pictures_lack_room(size_t n_pictures, size_t n_bytes)
{
        static char why[120];

        if (n_pictures > MAX_PICTURES)
                snprintf(why, sizeof(why), "%zu pictures; a request has at most %u", n_pictures, MAX_PICTURES);
        else if (n_bytes > MAX_PICTURES_BYTES)
                snprintf(why, sizeof(why), "the pictures have %s; a request has room for 8 MiB of pictures",
                         human_bytes(n_bytes));
        else
                return NULL;
        return why;
}

bool cli_pictures_read(struct cli_pictures *to, const struct arg_list *paths)
{
        const char *why;
        size_t bytes = 0;

        for (size_t i = 0; i < paths->n; i++) {
                struct cli_picture *picture = cli_picture_read(paths->items[i]);

                if (!picture)
                        return false;
                bytes += picture->file.size;
                if (!cli_pictures_add(to, picture, 0))
                        return false;
                why = pictures_lack_room(to->n, bytes);
                if (why) {
                        complain("%s", why);
                        return false;
                }
        }
        return true;
}

void cli_pictures_free(struct cli_pictures *p)
{
        for (size_t i = 0; i < p->n; i++)
                cli_picture_unref(p->items[i].picture);
        free(p->items);
        *p = (struct cli_pictures){ 0 };
}

void cli_pictures_put(const struct cli_pictures *from, uint32_t message, struct tandem_picture *to)
{
        for (size_t i = 0; i < from->n; i++)
                to[i] = (struct tandem_picture){ .file = from->items[i].picture->file.data,
                                                 .size = from->items[i].picture->file.size,
                                                 .message = message,
                                                 .offset = (uint32_t)from->items[i].offset };
}

/* ---- paths in a line ---- */

/* A plain file that begins as a picture, of those that are taken or another one. Nothing is said of others. */
static bool is_picture(const char *path)
{
        _cleanup_(closep) int fd = -1;
        char head[HEAD_BYTES];
        const char *other;
        struct stat st;
        ssize_t n;

        if (stat(path, &st) < 0 || !S_ISREG(st.st_mode)) /* opening a device may do something */
                return false;
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (fd < 0)
                return false;
        n = pread(fd, head, sizeof(head), 0);
        return n > 0 && (picture_kind(head, (size_t)n, &other) || other);
}

/* The picture whose path the text begins with: the bytes that the path has. Behind a path without quotes may be a
 * sentence's end. */
static size_t path_at(const char *text, size_t size, char **ret)
{
        size_t n;
        char *path;

        if (!typed_is_path(text, size))
                return 0;
        n = typed_word(text, size, &path);
        while (n > 0) {
                if (is_picture(path)) {
                        *ret = path;
                        return n;
                }
                free(path);
                if (!strchr(".,;:!?)", text[n - 1]))
                        return 0;
                n = n > 1 && typed_word(text, n - 1, &path) == n - 1 ? n - 1 : 0;
        }
        return 0;
}

/* The whole line as it stands, with blanks in the path. */
static bool is_whole_path(const char *line, size_t size, char **ret)
{
        while (size > 0 && line[size - 1] == ' ')
                size--;
        if (!typed_is_path(line, size) || *line == '\'' || *line == '"')
                return false;
        *ret = typed_plain(line, size);
        if (*ret && is_picture(*ret))
                return true;
        free(*ret);
        return false;
}

/* Blanks where a path was taken away are nobody's words. */
static void trim(struct buf *text, struct cli_pictures *pictures)
{
        size_t begin = 0;

        while (text->size > 0 && text->data[text->size - 1] == ' ')
                text->size--;
        while (begin < text->size && text->data[begin] == ' ')
                begin++;
        if (begin > 0)
                memmove(text->data, text->data + begin, text->size - begin);
        text->size -= begin;
        for (size_t i = 0; i < pictures->n; i++) {
                size_t offset = pictures->items[i].offset;

                pictures->items[i].offset = TDM_MIN(offset > begin ? offset - begin : 0, text->size);
        }
}

/* Takes the path over. */
static bool take_path(char *path, size_t offset, struct cli_pictures *to)
{
        struct cli_picture *picture = cli_picture_read(path);

        free(path);
        return picture && cli_pictures_add(to, picture, offset);
}

enum typed_pictures pictures_find(const char *line, size_t size, struct buf *ret_text, struct cli_pictures *ret)
{
        size_t at = 0, n_looks = 0;
        bool taken = true;
        char *path;

        while (at < size && line[at] == ' ')
                at++;
        if (is_whole_path(line + at, size - at, &path)) {
                taken = take_path(path, 0, ret);
                at = size;
        }
        while (taken && at < size) {
                size_t n = n_looks < MAX_LOOKS && typed_is_path(line + at, size - at) ? n_looks++,
                       path_at(line + at, size - at, &path) : 0;

                if (n > 0) {
                        taken = take_path(path, ret_text->size, ret);
                        at += n;
                        continue;
                }
                while (at < size && line[at] != ' ')
                        buf_add(ret_text, line + at++, 1);
                while (at < size && line[at] == ' ')
                        buf_add(ret_text, line + at++, 1);
        }
        buf_add(ret_text, "", 0);
        if (taken && ret_text->failed)
                lack_memory();
        if (!taken || ret_text->failed)
                return TYPED_REFUSED;
        if (ret->n == 0)
                return TYPED_NO_PICTURES;
        trim(ret_text, ret);
        return TYPED_PICTURES;
}

bool picture_begins(const char *line, size_t size)
{
        char *path;

        if (!is_whole_path(line, size, &path) && path_at(line, size, &path) == 0)
                return false;
        free(path);
        return true;
}
