/* Decodes files as the daemon would, in a process each, for tests that compare pixels with another program's: for each
 * file a line "WIDTH HEIGHT" and the RGB bytes, or a line "error: TEXT".
 *
 * usage: decode-picture-file FILE… */
#include <fcntl.h>

#include "engine/image/decoder.h"

int main(int argc, char **argv)
{
        for (int i = 1; i < argc; i++) {
                const struct tdm_decoder_limits limits = { .most_bytes = TDM_DECODER_MOST_BYTES,
                                                           .most_pixels = TDM_DECODER_MOST_PIXELS,
                                                           .most_side = TDM_DECODER_MOST_SIDE,
                                                           .deadline_ns = tdm_now_ns() + 120 * TDM_NSEC_PER_SEC };
                _cleanup_(closep) int fd = open(argv[i], O_RDONLY | O_CLOEXEC);
                _cleanup_(tdm_picture_destroyp) struct tdm_picture *picture = NULL;
                struct tdm_error err = { 0 };
                int r = fd < 0 ? -errno :
                                 tdm_picture_decode(&picture, TANDEM_BIN_DIR "/tandem-picture-decoder", fd, &limits,
                                                    &err);

                if (r != 0) {
                        printf("error: %s\n", err.message[0] ? err.message : strerror(-r));
                        continue;
                }
                printf("%u %u\n", picture->size.width, picture->size.height);
                fwrite(picture->rgb, 3, (size_t)picture->size.width * picture->size.height, stdout);
        }
        return ferror(stdout) || fflush(stdout) != 0;
}
