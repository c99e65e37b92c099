// Search results: guides first, and measurements and changes last. Sphinx has the other scores.
var Scorer = {
  score: ([page, , , , score]) => {
    if (/^(guide|writing|get_started|howto|tutorials|fields|formats)/.test(page)) return score + 3;
    if (/^(changelog|contributing|design|performance)/.test(page)) return score - 3;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
