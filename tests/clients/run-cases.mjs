// Runs the cases of a file one after another: each is a function by its name. Prints a line for each; the exit status is
// that of the worst. wanted: the names of those to run; none: all.
export async function runCases(cases, wanted = []) {
        let failed = 0;

        for (const [name, run] of Object.entries(cases)) {
                if (wanted.length > 0 && !wanted.includes(name))
                        continue;
                try {
                        await run();
                        console.log(`ok   ${name}`);
                } catch (e) {
                        failed = 1;
                        console.log(`FAIL ${name}: ${e.stack}`);
                }
        }
        process.exit(failed);
}
