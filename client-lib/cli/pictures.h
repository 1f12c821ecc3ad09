/* Files of pictures that a command was given, for one message or prompt. */
#ifndef TDM_CLI_PICTURES_H
#define TDM_CLI_PICTURES_H

#include "client-lib/cli/cli.h"

struct cli_pictures {
        struct tandem_picture *items; /* [n] */
        struct buf *files;            /* [n] */
        size_t n;
};

/* All stand at the start of this message. False: one cannot be read, which was told. */
bool cli_pictures_read(struct cli_pictures *ret, const struct arg_list *paths, uint32_t message);
void cli_pictures_free(struct cli_pictures *pictures);

#endif
