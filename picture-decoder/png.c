/* PNG by libpng. Chunks that change no pixel here are skipped unread: texts and profiles may be compressed bombs. */
#include "picture-decoder/private.h"

#include <png.h>

struct png_reading {
        const struct picture_file *file;
        struct picture_read *ret;
        struct tdm_error *err;
        size_t at;
        png_structp png;
        png_infop info;
        png_bytep *rows; /* [height], into file->rgb */
};

/* Five bytes each, as png_set_keep_unknown_chunks() takes them. */
static const png_byte skipped[] = "bKGD\0cHRM\0gAMA\0hIST\0iCCP\0iTXt\0oFFs\0pCAL\0pHYs\0sBIT\0sCAL\0sPLT\0sRGB\0tEXt\0"
                                  "tIME\0tRNS\0zTXt";

static void png_failed(png_structp png, png_const_charp text)
{
        struct png_reading *reading = png_get_error_ptr(png);

        tdm_error_set(reading->err, TDM_E_BAD_REQUEST, "the picture is a damaged PNG: %s", text);
        png_longjmp(png, 1);
}

static void png_warned(png_structp png, png_const_charp text)
{
}

static void png_give_bytes(png_structp png, png_bytep to, size_t n)
{
        struct png_reading *reading = png_get_io_ptr(png);

        if (n > reading->file->size - reading->at)
                png_error(png, "it ends early");
        memcpy(to, reading->file->data + reading->at, n);
        reading->at += n;
}

/* The head says the size before anything else, so that a picture which is too large costs nothing. */
static int check_declared_size(const struct picture_file *file, struct tdm_error *err)
{
        const uint8_t *p = file->data + 16;

        if (file->size < 24 || memcmp(file->data + 12, "IHDR", 4) != 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "the picture is a damaged PNG: it has no head");
        return picture_check_size(file, (uint64_t)p[0] << 24 | (uint64_t)p[1] << 16 | (uint64_t)p[2] << 8 | p[3],
                                  (uint64_t)p[4] << 24 | (uint64_t)p[5] << 16 | (uint64_t)p[6] << 8 | p[7], err);
}

/* Indices lie one a byte at the start of each row; colours take their place from the end on. */
static void look_up_palette(struct png_reading *reading)
{
        struct tdm_image_size size = reading->ret->size;
        png_colorp colours = NULL;
        int n = 0;

        png_get_PLTE(reading->png, reading->info, &colours, &n);
        for (uint32_t y = 0; y < size.height; y++)
                for (uint32_t x = size.width; x-- > 0;) {
                        int i = reading->rows[y][x];

                        if (i >= n)
                                png_error(reading->png, "a pixel has a colour that its palette lacks");
                        reading->rows[y][3 * x] = colours[i].red;
                        reading->rows[y][3 * x + 1] = colours[i].green;
                        reading->rows[y][3 * x + 2] = colours[i].blue;
                }
}

static void read_rows(struct png_reading *reading)
{
        png_structp png = reading->png;
        struct tdm_image_size size = reading->ret->size;
        png_byte colour = png_get_color_type(png, reading->info);
        size_t row_bytes = colour == PNG_COLOR_TYPE_PALETTE ? size.width : (size_t)size.width * 3;

        png_set_strip_16(png);
        if (colour & PNG_COLOR_MASK_ALPHA)
                png_set_strip_alpha(png);
        if (colour == PNG_COLOR_TYPE_PALETTE)
                png_set_packing(png);
        else if (!(colour & PNG_COLOR_MASK_COLOR)) {
                png_set_expand_gray_1_2_4_to_8(png);
                png_set_gray_to_rgb(png);
        }
        png_set_interlace_handling(png);
        png_read_update_info(png, reading->info);
        if (png_get_rowbytes(png, reading->info) != row_bytes)
                png_error(png, "its rows have another length than its head says");
        png_read_image(png, reading->rows);
        if (colour == PNG_COLOR_TYPE_PALETTE)
                look_up_palette(reading);
        png_read_end(png, reading->info);
}

static void read_orientation(struct png_reading *reading)
{
#ifdef PNG_eXIf_SUPPORTED
        png_bytep exif = NULL;
        png_uint_32 n = 0;

        if (png_get_eXIf_1(reading->png, reading->info, &n, &exif) && exif)
                reading->ret->orientation = picture_exif_orientation(exif, n);
#endif
}

/* Everything that libpng may leave by a jump. */
static int png_run(struct png_reading *reading)
{
        if (setjmp(png_jmpbuf(reading->png)))
                return TDM_E_BAD_REQUEST;
        png_set_read_fn(reading->png, reading, png_give_bytes);
        png_set_user_limits(reading->png, reading->file->limits->most_side, reading->file->limits->most_side);
        png_set_chunk_malloc_max(reading->png, 1 << 20);
        png_set_chunk_cache_max(reading->png, 64);
        png_set_keep_unknown_chunks(reading->png, PNG_HANDLE_CHUNK_NEVER, skipped, sizeof(skipped) / 5);
        png_read_info(reading->png, reading->info);
        if (reading->ret->size.width != png_get_image_width(reading->png, reading->info) ||
            reading->ret->size.height != png_get_image_height(reading->png, reading->info))
                png_error(reading->png, "it has two heads");
        read_rows(reading);
        read_orientation(reading);
        return 0;
}

static int begin_reading(struct png_reading *reading)
{
        const uint8_t *p = reading->file->data + 16; /* checked */
        struct tdm_image_size *size = &reading->ret->size;

        size->width = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
        size->height = (uint32_t)p[4] << 24 | (uint32_t)p[5] << 16 | (uint32_t)p[6] << 8 | p[7];
        reading->rows = calloc(size->height, sizeof(reading->rows[0]));
        reading->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, reading, png_failed, png_warned);
        reading->info = reading->png ? png_create_info_struct(reading->png) : NULL;
        if (!reading->rows || !reading->info)
                return tdm_error_set(reading->err, TDM_E_BAD_REQUEST,
                                     "the picture needs more memory than a picture may have: make it smaller");
        for (uint32_t y = 0; y < size->height; y++)
                reading->rows[y] = reading->file->rgb + (size_t)y * size->width * 3;
        return 0;
}

int picture_read_png(const struct picture_file *file, struct picture_read *ret, struct tdm_error *err)
{
        struct png_reading reading = { .file = file, .ret = ret, .err = err };
        int r = check_declared_size(file, err);

        if (r == 0)
                r = begin_reading(&reading);
        if (r == 0)
                r = png_run(&reading);
        if (reading.png)
                png_destroy_read_struct(&reading.png, &reading.info, NULL);
        free(reading.rows);
        return r;
}
