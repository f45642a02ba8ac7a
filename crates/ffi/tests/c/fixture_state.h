/* The layers of the fixtures: each kind of state is a block of floats a layer has, and a function
 * that takes a row through it. Rows stay within (-1, 1). */

#ifndef FIXTURE_STATE_H
#define FIXTURE_STATE_H

#include <stddef.h>
#include <stdint.h>

/* Where in a model and in a conversation a row is. */
typedef struct Place {
    uint32_t width;
    uint32_t context;
    uint32_t layer;
    uint32_t position;
    int32_t token;
} Place;

/* Floats of one layer's state of all kinds in `kinds`. */
size_t fixture_floats(uint32_t kinds, uint32_t width, uint32_t context);

/* Takes `row` through one layer. `device` stands for memory of a device: it is not the state, but
 * what it holds of it is newer (see fixtures.c). */
void fixture_layer(uint32_t kinds, float *state, float *device, const Place *place, float *row);

/* Whether a layer's state can be that of a conversation of `position` rows. */
int fixture_sound(uint32_t kinds, const float *state, uint32_t width, uint32_t context,
                  uint32_t position);

#endif
