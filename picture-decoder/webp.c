/* WebP by libwebp, one still picture. */
#include "picture-decoder/private.h"

#include <webp/decode.h>
#include <webp/demux.h>

static const char *webp_status(VP8StatusCode status)
{
        switch (status) {
        case VP8_STATUS_OUT_OF_MEMORY:
                return "it needs more memory than a picture may have";
        case VP8_STATUS_UNSUPPORTED_FEATURE:
                return "it is of a kind that libwebp does not know";
        case VP8_STATUS_SUSPENDED:
        case VP8_STATUS_NOT_ENOUGH_DATA:
                return "it ends early";
        default:
                return "its data is damaged";
        }
}

static int refuse_webp(VP8StatusCode status, struct tdm_error *err)
{
        return tdm_error_set(err, TDM_E_BAD_REQUEST, "the picture is a WebP that cannot be decoded: %s",
                             webp_status(status));
}

static unsigned webp_orientation(const struct picture_file *file)
{
        const WebPData data = { .bytes = file->data, .size = file->size };
        WebPDemuxer *demux = WebPDemux(&data);
        WebPChunkIterator chunk;
        unsigned orientation = 1;

        if (demux && WebPDemuxGetChunk(demux, "EXIF", 1, &chunk)) {
                orientation = picture_exif_orientation(chunk.chunk.bytes, chunk.chunk.size);
                WebPDemuxReleaseChunkIterator(&chunk);
        }
        WebPDemuxDelete(demux);
        return orientation;
}

int picture_read_webp(const struct picture_file *file, struct picture_read *ret, struct tdm_error *err)
{
        WebPDecoderConfig config;
        VP8StatusCode status;
        int r;

        if (!WebPInitDecoderConfig(&config))
                return tdm_error_set(err, TDM_E_INTERNAL, "libwebp is of another version than its header");
        status = WebPGetFeatures(file->data, file->size, &config.input);
        if (status != VP8_STATUS_OK)
                return refuse_webp(status, err);
        r = picture_check_size(file, (uint64_t)config.input.width, (uint64_t)config.input.height, err);
        if (r != 0)
                return r;
        if (config.input.has_animation)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "the picture is an animated WebP: send one of its pictures");
        config.output.colorspace = MODE_RGB;
        config.output.is_external_memory = 1;
        config.output.u.RGBA.rgba = file->rgb;
        config.output.u.RGBA.stride = config.input.width * 3;
        config.output.u.RGBA.size = (size_t)config.input.width * (size_t)config.input.height * 3;
        status = WebPDecode(file->data, file->size, &config);
        WebPFreeDecBuffer(&config.output);
        if (status != VP8_STATUS_OK)
                return refuse_webp(status, err);
        ret->size = (struct tdm_image_size){ .width = (uint32_t)config.input.width,
                                             .height = (uint32_t)config.input.height };
        ret->orientation = webp_orientation(file);
        return 0;
}
