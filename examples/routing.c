/* carpool's routing core from C: three rows of eight experts, of which each uses three. The same numbers, worked out by
 * hand, are the example of the paper's algorithm in the tests.
 *
 *   cc routing.c -o routing $(pkg-config --cflags --libs carpool-routing) -lm
 */
#include <carpool/routing.h>
#include <math.h>
#include <stdio.h>

int main(void) {
  static const float probabilities[3][8] = {{.30f, .25f, .15f, .10f, .08f, .06f, .04f, .02f},
                                            {.05f, .40f, .02f, .03f, .30f, .10f, .06f, .04f},
                                            {.10f, .05f, .10f, .35f, .05f, .20f, .10f, .05f}};
  float logits[3][8], weights[3][3];
  int32_t ids[3][3];
  carpool_routing_model model;
  carpool_routing_batch batch;
  carpool_routing_counters counters;
  carpool_routing_error error;
  carpool_routing* routing;
  int t, i;

  for (t = 0; t < 3; ++t) {
    for (i = 0; i < 8; ++i) logits[t][i] = logf(probabilities[t][i]);
  }
  carpool_routing_model_init(&model, sizeof model);
  model.n_experts = 8;
  model.top_k = 3;
  if (carpool_routing_create("oea:k0=1,guard=off", &model, &routing, &error) != CARPOOL_ROUTING_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  carpool_routing_batch_init(&batch, sizeof batch);
  batch.rows = 3;
  batch.logits = logits;
  batch.ids = &ids[0][0];
  batch.weights = &weights[0][0];
  batch.columns = carpool_routing_columns(routing);
  if (carpool_routing_route(routing, &batch, &error) != CARPOOL_ROUTING_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  printf("policy %s, %d columns\n", carpool_routing_spec(routing), (int)batch.columns);
  for (t = 0; t < 3; ++t) {
    printf("row %d:", t);
    for (i = 0; i < 3; ++i) printf(" %d (%.3f)", (int)ids[t][i], weights[t][i]);
    printf("\n");
  }
  counters.size = sizeof counters;
  carpool_routing_get_counters(routing, &counters, NULL);
  printf("%d distinct experts instead of %d\n", (int)counters.distinct_experts, (int)counters.distinct_plain);
  carpool_routing_destroy(routing);

  if (carpool_routing_create("oea:k0=-1", &model, &routing, &error) != CARPOOL_ROUTING_OK) {
    printf("refused: %s\n", error.text);
  }
  return 0;
}
