/* JPEG by libjpeg-turbo: its integer inverse DCT and its smooth chroma, which are its defaults. The library goes on
 * behind damage, with grey where data is missing. Here a warning of damage ends it. */
#include "picture-decoder/private.h"

#include <setjmp.h>
#include <jpeglib.h>
#include <jerror.h>

/* A progressive file may have any number of scans, each of which costs a pass over the whole picture. Usual ones have
 * ten. */
#define SCANS_MAX 100

struct jpeg_reading {
        struct jpeg_error_mgr errors; /* first: the library hands out its address */
        struct jpeg_decompress_struct jpeg;
        struct jpeg_progress_mgr progress;
        jmp_buf failed;
        const struct picture_file *file;
        struct picture_read *ret;
        struct tdm_error *err;
        uint8_t *cmyk; /* a row; [width][4] */
};

static void jpeg_failed(j_common_ptr common)
{
        struct jpeg_reading *reading = (struct jpeg_reading *)(void *)common->err;
        char text[JMSG_LENGTH_MAX];

        common->err->format_message(common, text);
        tdm_error_set(reading->err, TDM_E_BAD_REQUEST, "the picture is a JPEG that cannot be decoded: %s", text);
        longjmp(reading->failed, 1);
}

/* Warnings of what leaves every pixel as it was meant. Cameras pad what they write. */
static bool is_harmless(int code)
{
        return code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR ||
               code == JWRN_TOO_MUCH_DATA;
}

static void jpeg_said(j_common_ptr common, int level)
{
        if (level < 0 && !is_harmless(common->err->msg_code))
                jpeg_failed(common);
}

static void jpeg_output(j_common_ptr common)
{
}

static void refuse_jpeg(struct jpeg_reading *reading, const char *why)
{
        tdm_error_set(reading->err, TDM_E_BAD_REQUEST, "the picture is a JPEG %s: save it in another way", why);
        longjmp(reading->failed, 1);
}

static void jpeg_progressed(j_common_ptr common)
{
        struct jpeg_reading *reading = (struct jpeg_reading *)(void *)common->err;

        if (reading->jpeg.input_scan_number > SCANS_MAX)
                refuse_jpeg(reading, "of too many scans");
}

static void jpeg_read_head(struct jpeg_reading *reading)
{
        struct jpeg_decompress_struct *jpeg = &reading->jpeg;

        jpeg_mem_src(jpeg, reading->file->data, reading->file->size);
        jpeg_save_markers(jpeg, JPEG_APP0 + 1, 0xffff);
        jpeg_read_header(jpeg, TRUE);
        if (picture_check_size(reading->file, jpeg->image_width, jpeg->image_height, reading->err) != 0)
                longjmp(reading->failed, 1);
        if (jpeg->data_precision != 8)
                refuse_jpeg(reading, "of more than 8 bits");
        if (jpeg->arith_code)
                refuse_jpeg(reading, "with arithmetic coding");
        if (jpeg->num_components != 1 && jpeg->num_components != 3 && jpeg->num_components != 4)
                refuse_jpeg(reading, "with two or more than four components");
        for (jpeg_saved_marker_ptr m = jpeg->marker_list; m; m = m->next)
                if (m->marker == JPEG_APP0 + 1 && m->data_length >= 6 && memcmp(m->data, "Exif\0", 6) == 0) {
                        reading->ret->orientation = picture_exif_orientation(m->data, m->data_length);
                        break;
                }
        reading->ret->size = (struct tdm_image_size){ .width = jpeg->image_width, .height = jpeg->image_height };
}

/* Adobe stores inks inverted: what is there is (255 - C) already. */
static void ink_to_rgb(const uint8_t *cmyk, uint32_t width, bool inverted, uint8_t *rgb)
{
        for (uint32_t x = 0; x < width; x++, cmyk += 4)
                for (unsigned c = 0; c < 3; c++) {
                        unsigned colour = inverted ? cmyk[c] : 255u - cmyk[c];
                        unsigned light = inverted ? cmyk[3] : 255u - cmyk[3];
                        unsigned v = colour * light + 128;

                        *rgb++ = (uint8_t)((v + (v >> 8)) >> 8);
                }
}

/* Everything that the library may leave by a jump. */
static int jpeg_run(struct jpeg_reading *reading)
{
        struct jpeg_decompress_struct *jpeg = &reading->jpeg;

        if (setjmp(reading->failed))
                return TDM_E_BAD_REQUEST;
        jpeg_create_decompress(jpeg);
        jpeg->progress = &reading->progress;
        jpeg_read_head(reading);
        jpeg->out_color_space = jpeg->num_components == 4 ? JCS_CMYK : JCS_RGB;
        jpeg_start_decompress(jpeg);
        if (jpeg->num_components == 4) {
                reading->cmyk = malloc((size_t)jpeg->output_width * 4);
                if (!reading->cmyk)
                        ERREXIT1(jpeg, JERR_OUT_OF_MEMORY, 0);
        }
        while (jpeg->output_scanline < jpeg->output_height) {
                uint8_t *rgb = reading->file->rgb + (size_t)jpeg->output_scanline * jpeg->output_width * 3;
                JSAMPROW row = reading->cmyk ? reading->cmyk : rgb;

                jpeg_read_scanlines(jpeg, &row, 1);
                if (reading->cmyk)
                        ink_to_rgb(reading->cmyk, jpeg->output_width, jpeg->saw_Adobe_marker, rgb);
        }
        jpeg_finish_decompress(jpeg);
        return 0;
}

int picture_read_jpeg(const struct picture_file *file, struct picture_read *ret, struct tdm_error *err)
{
        struct jpeg_reading reading = { .file = file, .ret = ret, .err = err };
        int r;

        reading.jpeg.err = jpeg_std_error(&reading.errors);
        reading.errors.error_exit = jpeg_failed;
        reading.errors.emit_message = jpeg_said;
        reading.errors.output_message = jpeg_output;
        reading.progress.progress_monitor = jpeg_progressed;
        r = jpeg_run(&reading);
        jpeg_destroy_decompress(&reading.jpeg);
        free(reading.cmyk);
        return r;
}
