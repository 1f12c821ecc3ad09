/* Intrusive doubly linked lists: a node is embedded in what it links, so nothing is allocated and a member can leave
 * from anywhere. A node that is in no list points to itself. */
#ifndef TDM_COMMON_LIST_H
#define TDM_COMMON_LIST_H

#include "common/util.h"

struct tdm_list {
        struct tdm_list *prev, *next;
};

#define tdm_container_of(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))
#define tdm_list_entry(node, type, member) tdm_container_of(node, type, member)
/* The loop's body may remove the entry it is at, but no other. */
#define tdm_list_for_each(e, list, type, member)                                                                       \
        for (struct tdm_list *it_##e = (list)->next, *next_##e = it_##e->next;                                         \
             it_##e != (list) && ((e = tdm_list_entry(it_##e, type, member)), true);                                   \
             it_##e = next_##e, next_##e = it_##e->next)

static inline void tdm_list_init(struct tdm_list *l)
{
        l->prev = l->next = l;
}
static inline bool tdm_list_empty(const struct tdm_list *l)
{
        return l->next == l;
}
static inline void tdm_list_append(struct tdm_list *list, struct tdm_list *node)
{
        node->prev = list->prev;
        node->next = list;
        list->prev->next = node;
        list->prev = node;
}
static inline void tdm_list_remove(struct tdm_list *node)
{
        node->prev->next = node->next;
        node->next->prev = node->prev;
        tdm_list_init(node);
}

#endif
