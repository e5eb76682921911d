"use strict";
// Short definitions of the page's words: linked where a word first appears, listed at the end of the page.

const WORDS = {
  group: ["group", "Clients that train one model together. A run names its groups G0, G1, …; \"all\" is the group of all clients."],
  shared: ["one model for all", "All clients train the same model (federated averaging, fedavg)."],
  alone: ["training alone", "Every client trains its own model on its own data and shares nothing (independent)."],
  significant: ["significant", "More than chance would explain, in at most 5 % of comparisons of equally good models."],
  rand: ["adjusted Rand index", "How well the groups agree with the true ones: 1 if they are the same, about 0 if they agree by chance."],
  truth: ["true groups", "The groups that the data were made with. They are known in simulations only, and hidden from all methods."],
  worst: ["worst client", "The client with the worst score on its own test data."],
  pooled: ["pooled", "Computed over the test rows of all clients together, not as a mean over clients."],
  heldout: ["held-out loss", "The error on examples that were not used for training; the smaller, the better."],
  error: ["standard error", "How far a mean is from the true one, typically, because it is of few examples."],
  p: ["p", "The probability that clients with the same data would differ at least as much. A small p speaks for groups."],
  splithalf: ["split-half", "A method that trains every client on two random halves of its data: clients that differ more than their own halves do belong into different groups."],
  probe: ["probe", "A round in which every client also trains on two random halves of its data, to test whether clients differ more than chance."],
  candidate: ["not in use", "The method has found these groups, but clients still use other models, because the groups' models are not better yet."],
  personal: ["personal model", "A client's own version of the model that it shares: it trains it further on its data, and uses it only if it is better."],
  constant: ["always predicting the same", "What a model that has learned nothing would score: the most frequent class, or the mean."],
};

/** Text in which each of these words is looked for, in this order; of two words that overlap, the longer one comes first. */
const PATTERNS = [
  ["rand", /adjusted Rand( index)?/],
  ["heldout", /held-out loss(es)?/i],
  ["error", /standard errors?/],
  ["splithalf", /split-half/],
  ["probe", /\bprobes?\b/],
  ["candidate", /not in use/],
  ["personal", /personal models?/],
  ["shared", /one model for all/i],
  ["alone", /training alone/i],
  ["constant", /always predicting (the same|class \S+)/i],
  ["truth", /true groups?/],
  ["significant", /significant(ly)?/],
  ["worst", /worst client/i],
  ["pooled", /pooled/],
  ["p", /\bp(?= (of|if|[<=>≤≥]|\())/],
];

/** The words that the page has explained so far. */
const explained = new Set();

/** Text with links from the words that it is the first to use. */
function worded(text) {
  if (typeof text !== "string") return text;
  for (const [key, pattern] of PATTERNS) {
    const found = !explained.has(key) && pattern.exec(text);
    if (found) {
      explained.add(key);
      const before = worded(text.slice(0, found.index));
      const after = worded(text.slice(found.index + found[0].length));
      return [before, linked(key, found[0]), after];
    }
  }
  return text;
}
const linked = (key, text) => h("a", { class: "word", href: `#word-${key}`, title: WORDS[key][1] }, text);

/** The definitions of the words that the page has used. */
function wordList() {
  const used = Object.entries(WORDS).filter(([key]) => explained.has(key));
  if (!used.length) return null;
  return h("section", { class: "words", id: "words", "aria-labelledby": "words-title" },
    h("h2", { id: "words-title" }, "Words"),
    h("dl", {}, used.map(([key, [word, meaning]]) => h("div", { id: `word-${key}` }, h("dt", {}, word), h("dd", {}, meaning)))));
}
