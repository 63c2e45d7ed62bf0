/* Adapters of PEFT on their bases: conform_adapters SCRATCH_DIR BASE ADAPTER …. Prints a row of a Markdown table for each adapter. Exit 1
 * where one is further off than the goldens' own tolerances (logits 2e-4, merged 5e-4, gradients 1e-4 of a tensor's largest entry). */
#include "support/adapter_golden.h"

#include "base/fs.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: conform_adapters SCRATCH_DIR BASE ADAPTER...\n");
        return 2;
    }
    int n_off = 0;
    for (int i = 3; i < argc; i++) {
        ag_err err;
        adapter_distances d;
        if (adapter_golden_compare(&d, argv[2], argv[i], argv[1], &err)) {
            printf("| %s | %s | %s |\n", ag_path_base(argv[2]), ag_path_base(argv[i]), err.text);
            n_off++;
            continue;
        }
        const bool off = !(d.logits <= 2e-4 && d.merged <= 5e-4 && d.attached_merged <= 5e-4 && d.gradient <= 1e-4);
        n_off += off;
        printf("| %s | %s | %zu | %.1e | ", ag_path_base(argv[2]), ag_path_base(argv[i]), d.n_tensors, d.logits);
        if (d.unties) printf("untied | ");
        else printf("%.1e | ", d.merged);
        printf("%.1e | ", d.attached_merged);
        if (d.n_gradients == 0) printf("- |%s\n", off ? " OFF" : "");
        else printf("%.1e (%zu) |%s\n", d.gradient, d.n_gradients, off ? " OFF" : "");
    }
    return n_off > 0;
}
