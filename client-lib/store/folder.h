/* The folders in which models lie, as tandemd searches them. */
#ifndef TANDEM_STORE_FOLDER_H
#define TANDEM_STORE_FOLDER_H

#include "common/error.h"
#include "common/suggest.h"

#define SYSTEM_MODEL_FOLDER "/var/lib/tandem/models"

/* The caller's own: $XDG_DATA_HOME/tandem/models, or ~/.local/share/tandem/models. *ret is the caller's.
 * TDM_E_DENIED: there is no home. */
int folder_of_user(char **ret, struct tdm_error *err);
/* Makes a folder and those above it, and opens it: all that follows goes through *ret_fd, the caller's, so that nobody
 * can put another folder in its place meanwhile. */
int folder_make(const char *path, int *ret_fd, struct tdm_error *err);
/* FOLDER/NAME.gguf; the caller's, NULL without memory. */
char *folder_file(const char *folder, const char *name);
/* A file's name without its folder and .gguf; the caller's. */
char *folder_name_of(const char *path);
/* TDM_E_BAD_REQUEST: no model can have this name, with the reason. */
int folder_check_name(const char *name, struct tdm_error *err);
/* Whether the name is of one part of a split model ("x-00001-of-00003"). Then *ret_stem bytes of it are the same in all
 * parts, and *ret_n is the number of parts. */
bool folder_is_part(const char *name, size_t *ret_stem, unsigned *ret_part, unsigned *ret_n);

/* A model and its projector, which lets it see pictures, are one: beside NAME.gguf, or the first part of NAME, lies
 * mmproj-NAME.gguf. Whether a file's name (without its folder) is a projector's. */
bool folder_is_projector(const char *base);
/* The projector's name for that of a model or of a part of one, both without .gguf; the caller's, NULL without
 * memory. */
char *folder_projector_name(const char *name);

/* fn gets each .gguf file of the folder but projectors: its path and its size. Stops when fn returns false. Links that
 * lead to no file are left out. */
void folder_each(const char *folder, bool (*fn)(const char *path, uint64_t size_bytes, void *userdata), void *userdata);
/* The same for each model name (without .gguf) that something in the open folder has: a file, a link that may lead
 * nowhere, or what `tandem add` or `pull` left of it. A name may come several times, and in any order. */
void folder_each_name(int folder_fd, bool (*fn)(const char *name, void *userdata), void *userdata);

/* The file of a model's name in the folder; of a model in parts the first one. The names there go to near. NULL: there
 * is none, or no memory; else the caller's. */
char *folder_find(const char *folder, const char *name, struct tdm_suggestion *near);

#endif
