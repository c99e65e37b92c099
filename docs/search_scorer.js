// Search results: sections that answer a word (ci/search_words.py) and titles first; measurements,
// changes and methods last. Sphinx has the other scores.
var Scorer = {
  score: (result) => {
    const [page, , anchor, , score, , kind] = result;
    if (kind === SearchResultKind.index) result[1] = getSectionTitle(page, anchor) ?? result[1];
    if (/^(guide|writing|get_started|howto|tutorials|fields|formats|cli)/.test(page)) return score + 3;
    if (/^(changelog|contributing|design|performance)|accessor/.test(page)) return score - 3;
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

// More results would fetch more pages for their summaries.
const MAX_RESULTS = 20;
const performSearch = Search._performSearch;
Search._performSearch = (...query) => performSearch(...query).slice(-MAX_RESULTS);

// Return the title of a section, after the title of its page.
const getSectionTitle = (page, anchor) => {
  const { alltitles, docnames, titles } = Search._index;
  const file = docnames.indexOf(page);
  for (const [title, places] of Object.entries(alltitles)) {
    if (places.some(([other, id]) => other === file && `#${id}` === anchor))
      return `${titles[file]} > ${title}`;
  }
};

// Summaries are the paragraph with the word, without outputs and formulas, or the first row or code.
const SUMMARY_LENGTH = 200;
const PARAGRAPHS =
  "dt:not(.sig), p:not(.rubric, .guide-link, :has(.math), :is(td, .cell_output, .notebook-links) p)";
Search.makeSearchSummary = (html, words, anchor) => {
  const page = new DOMParser().parseFromString(html, "text/html");
  const main = page.querySelector("article.bd-article");
  const part = (anchor && main?.querySelector(anchor)) || main;
  const hasWord = (text) => [...words].some((word) => text.toLowerCase().includes(word));
  const findTexts = (selector) =>
    [...(part?.querySelectorAll(selector) ?? [])]
      .map((element) => element.textContent.trim().replace(/\s+/g, " "))
      .filter((text) => text);
  const paragraphs = findTexts(PARAGRAPHS);
  const text = [...paragraphs, ...findTexts("tr, pre")].find(hasWord) ?? paragraphs[0];
  if (!text) return null;
  const summary = document.createElement("p");
  summary.classList.add("context");
  summary.textContent =
    text.length > SUMMARY_LENGTH ? text.slice(0, SUMMARY_LENGTH).replace(/\s\S*$/, " …") : text;
  return summary;
};
