/* See pictures.h. */
#include "http-gateway/pictures.h"

#include <strings.h>
#include "http-gateway/base64.h"
#include "http-gateway/generation.h"

#define DATA_HINT "send the picture itself, as data:image/png;base64,…"

void request_pictures_free(struct request_pictures *p)
{
        for (size_t i = 0; i < p->n; i++)
                free((void *)(uintptr_t)p->items[i].file);
        free(p->items);
        free(p->places);
        *p = (struct request_pictures){ 0 };
}

/* Room for one more. */
static int pictures_grow(struct request_pictures *p, const char *place, struct failure *f)
{
        struct tandem_picture *items;
        char(*places)[PICTURE_PLACE_BYTES];

        if (p->n == MAX_PICTURES)
                return failure_set(f, 400, "invalid_value", place,
                                   "'%s' is picture %zu of this request; at most %u are taken", place, p->n + 1,
                                   MAX_PICTURES);
        items = reallocarray(p->items, p->n + 1, sizeof(*items));
        p->items = items ? items : p->items;
        places = reallocarray(p->places, p->n + 1, sizeof(*places));
        p->places = places ? places : p->places;
        return items && places ? 0 : failure_set(f, 503, "no_memory", NULL, "no memory for this request");
}

/* What a request's values were counted to take for a text, and a copy of it, is given back. */
static void value_clear(struct generation_request *r, json_t *value, size_t file_bytes)
{
        size_t counted = 2 * json_string_length(value);

        if (json_string_set(value, "") == 0 && counted > file_bytes)
                r->bytes -= TDM_MIN(r->bytes, counted - file_bytes);
}

/* value: the string whose base64 begins at `from`. name: the string's, place: the picture's, in the request. */
static int picture_add(struct generation_request *r, json_t *value, size_t from, size_t message, size_t offset,
                       const char *name, const char *place, struct failure *f)
{
        struct request_pictures *p = &r->pictures;
        size_t size;
        void *file;

        if (message > UINT32_MAX || offset > UINT32_MAX)
                return failure_set(f, 400, "invalid_value", place, "'%s' stands too far behind", place);
        if (pictures_grow(p, place, f) != 0 ||
            base64_read(json_string_value(value) + from, json_string_length(value) - from, name, &file, &size, f) != 0)
                return f->status;
        if (size == 0) {
                free(file);
                return failure_set(f, 400, "invalid_value", name, "'%s' has a picture of no bytes", name);
        }
        value_clear(r, value, size);
        p->items[p->n] = (struct tandem_picture){
                .file = file, .size = size, .message = (uint32_t)message, .offset = (uint32_t)offset
        };
        snprintf(p->places[p->n], PICTURE_PLACE_BYTES, "%s", place);
        p->n++;
        p->size_bytes += size;
        return 0;
}

/* What a client calls the format. The decoder looks at the bytes alone. */
static int check_type(const char *type, size_t size, const char *name, struct failure *f)
{
        static const char *const types[] = { "image/png", "image/jpeg", "image/jpg", "image/webp" };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(types); i++)
                if (strlen(types[i]) == size && strncasecmp(types[i], type, size) == 0)
                        return 0;
        return failure_set(f, 400, "unsupported_parameter", name,
                           "'%s' is of type '%.*s'; image/png, image/jpeg and image/webp are taken", name,
                           (int)TDM_MIN(size, (size_t)60), type);
}

static int refuse_url(const char *url, const char *name, struct failure *f)
{
        static const struct {
                const char *scheme, *why;
        } known[] = { { "http:", "nothing is fetched here" },
                      { "https:", "nothing is fetched here" },
                      { "file:", "no file is read here" },
                      { "blob:", "only the browser that made it can read it" } };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(known); i++)
                if (strncasecmp(url, known[i].scheme, strlen(known[i].scheme)) == 0)
                        return failure_set(f, 400, "unsupported_parameter", name, "'%s' is a URL with %s and %s: %s",
                                           name, known[i].scheme, known[i].why, DATA_HINT);
        return failure_set(f, 400, "invalid_value", name, "'%s' is no URL of a picture: %s", name, DATA_HINT);
}

/* data:TYPE[;PARAMETER…];base64,… (RFC 2397) */
static int take_data_url(struct generation_request *r, json_t *value, size_t offset, const char *name,
                         const char *place, struct failure *f)
{
        const char *url = json_string_value(value), *type, *comma, marker[] = ";base64";
        size_t head;

        if (!json_is_string(value))
                return failure_set(f, 400, value ? "invalid_type" : "missing_required_parameter", name,
                                   "'%s' has to be a string: %s", name, DATA_HINT);
        if (strncasecmp(url, "data:", strlen("data:")) != 0)
                return refuse_url(url, name, f);
        type = url + strlen("data:");
        comma = strchr(type, ',');
        head = comma ? (size_t)(comma - type) : 0;
        if (head < strlen(marker) || strncasecmp(comma - strlen(marker), marker, strlen(marker)) != 0)
                return failure_set(f, 400, "invalid_value", name,
                                   "'%s' is a data: URL without ';base64,' in front of its data: %s", name, DATA_HINT);
        if (check_type(type, TDM_MIN(strcspn(type, ";"), head), name, f) != 0)
                return f->status;
        return picture_add(r, value, (size_t)(comma + 1 - url), r->n_messages, offset, name, place, f);
}

/* A model reads each picture at one size, whatever it is. */
static int take_detail(struct generation_request *r, const json_t *detail, const char *name, struct failure *f)
{
        const char *word = json_is_string(detail) ? json_string_value(detail) : "auto";

        if (strcmp(word, "high") == 0 && !strstr(r->warnings.text, "detail high"))
                params_warn(&r->warnings, "detail high is not used here: a model reads each picture at its own size");
        else if (strcmp(word, "auto") != 0 && strcmp(word, "low") != 0 && strcmp(word, "high") != 0)
                return failure_set(f, 400, "invalid_value", name, "'%s' has to be auto, low or high", name);
        return 0;
}

static int take_image_url(struct generation_request *r, const json_t *part, size_t offset, const char *where,
                          struct failure *f)
{
        json_t *image = json_get(part, "image_url");
        char name[PICTURE_PLACE_BYTES + 32], inner[PICTURE_PLACE_BYTES + 48];

        if (params_check_at(&params_image_part, where, part, &r->warnings, f) != 0)
                return f->status;
        snprintf(name, sizeof(name), "%.95s.image_url", where);
        if (!json_is_object(image))
                return take_data_url(r, image, offset, name, where, f);
        if (params_check_at(&params_image_url, name, image, &r->warnings, f) != 0)
                return f->status;
        snprintf(inner, sizeof(inner), "%s.detail", name);
        if (take_detail(r, json_get(image, "detail"), inner, f) != 0)
                return f->status;
        snprintf(inner, sizeof(inner), "%s.url", name);
        return take_data_url(r, json_get(image, "url"), offset, inner, where, f);
}

static int take_input_image(struct generation_request *r, const json_t *part, size_t offset, const char *where,
                            struct failure *f)
{
        char name[PICTURE_PLACE_BYTES + 32];

        if (params_check_at(&params_input_image, where, part, &r->warnings, f) != 0)
                return f->status;
        snprintf(name, sizeof(name), "%.95s.detail", where);
        if (take_detail(r, json_get(part, "detail"), name, f) != 0)
                return f->status;
        snprintf(name, sizeof(name), "%.95s.image_url", where);
        return take_data_url(r, json_get(part, "image_url"), offset, name, where, f);
}

static int take_image_block(struct generation_request *r, const json_t *block, size_t offset, const char *where,
                            struct failure *f)
{
        const json_t *source = json_get(block, "source");
        const char *kind = json_get_string(source, "type", ""), *type = json_get_string(source, "media_type", "");
        json_t *data = json_get(source, "data");
        char name[PICTURE_PLACE_BYTES + 32];

        if (params_check_at(&params_image_block, where, block, &r->warnings, f) != 0)
                return f->status;
        snprintf(name, sizeof(name), "%.95s.source", where);
        if (strcmp(kind, "url") == 0 || strcmp(kind, "file") == 0)
                return failure_set(f, 400, "unsupported_parameter", name,
                                   "'%s' is of type '%s', and %s here: send the picture itself, as a source of type "
                                   "base64",
                                   name, kind, *kind == 'u' ? "nothing is fetched" : "no files are kept");
        if (params_check_at(&params_image_source, name, source, &r->warnings, f) != 0)
                return f->status;
        if (strcmp(kind, "base64") != 0 || !data || !*type)
                return failure_set(f, 400, "invalid_value", name,
                                   "'%s' is not {\"type\": \"base64\", \"media_type\": …, \"data\": …}", name);
        snprintf(name, sizeof(name), "%.95s.source.media_type", where);
        if (check_type(type, strlen(type), name, f) != 0)
                return f->status;
        snprintf(name, sizeof(name), "%.95s.source.data", where);
        return picture_add(r, data, 0, r->n_messages, offset, name, where, f);
}

static const struct kind {
        const char *type;
        int (*take)(struct generation_request *r, const json_t *part, size_t offset, const char *where,
                    struct failure *f);
} kinds[] = { { "image_url", take_image_url }, { "input_image", take_input_image }, { "image", take_image_block } };

static const struct kind *kind_of(const char *type)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(kinds); i++)
                if (strcmp(kinds[i].type, type) == 0)
                        return &kinds[i];
        return NULL;
}

bool picture_is_a_part(const char *type)
{
        return kind_of(type) != NULL;
}

int request_take_picture(struct generation_request *r, const json_t *part, size_t offset, const char *where,
                         struct failure *f)
{
        return kind_of(json_get_string(part, "type", ""))->take(r, part, offset, where, f);
}

int request_take_images(struct generation_request *r, const json_t *images, size_t message, const char *where,
                        struct failure *f)
{
        for (size_t i = 0; i < json_array_size(images); i++) {
                json_t *image = json_array_get(images, i);
                char name[PICTURE_PLACE_BYTES];

                snprintf(name, sizeof(name), "%.60s[%zu]", where, i);
                if (!json_is_string(image))
                        return failure_set(f, 400, "invalid_type", name, "'%s' has to be a string: a picture in base64",
                                           name);
                if (strchr(json_string_value(image), ':'))
                        return failure_set(f, 400, "invalid_value", name,
                                           "'%s' is a URL, and this API has none: send the picture's base64 alone",
                                           name);
                if (picture_add(r, image, 0, message, 0, name, name, f) != 0)
                        return f->status;
        }
        return 0;
}

/* ---- peers ---- */

json_t *request_pictures_json(const struct request_pictures *p)
{
        json_t *pictures = json_array();

        for (size_t i = 0; i < p->n; i++) {
                _cleanup_(buffer_free) struct buffer text = { 0 };

                base64_add(&text, p->items[i].file, p->items[i].size);
                if (text.failed || json_array_append_new(pictures, json_pack("{s:I, s:I, s:o}", "message",
                                                                             (json_int_t)p->items[i].message, "offset",
                                                                             (json_int_t)p->items[i].offset, "file",
                                                                             json_stringn(text.data, text.size))) < 0) {
                        json_decref(pictures);
                        return NULL;
                }
        }
        return pictures;
}

int request_take_peers_pictures(struct generation_request *r, const json_t *pictures, struct failure *f)
{
        for (size_t i = 0; i < json_array_size(pictures); i++) {
                const json_t *picture = json_array_get(pictures, i);
                json_int_t message = json_get_integer(picture, "message", -1),
                           offset = json_get_integer(picture, "offset", -1);
                json_t *file = json_get(picture, "file");
                char name[PICTURE_PLACE_BYTES];

                snprintf(name, sizeof(name), "pictures[%zu]", i);
                if (message < 0 || offset < 0 || !json_is_string(file))
                        return failure_set(f, 400, "invalid_value", name, "'%s' lacks message, offset or file", name);
                if (picture_add(r, file, 0, (size_t)message, (size_t)offset, name, name, f) != 0)
                        return f->status;
        }
        return 0;
}

/* ---- places ---- */

void request_pictures_join(struct generation_request *r, size_t by)
{
        size_t last = r->n_messages - 1;

        for (size_t i = r->pictures.n; i > 0 && r->pictures.items[i - 1].message == last; i--) {
                r->pictures.items[i - 1].message--;
                r->pictures.items[i - 1].offset += (uint32_t)by;
        }
}

void failure_name_picture(struct failure *f, const struct generation_request *r)
{
        unsigned n;

        if (r->pictures.n > 0 && sscanf(f->message, "picture %u", &n) == 1 && n >= 1 && n <= r->pictures.n)
                snprintf(f->param, sizeof(f->param), "%s", r->pictures.places[n - 1]);
}
