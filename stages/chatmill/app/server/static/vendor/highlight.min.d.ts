/** The part of highlight.js that the chat page uses. */

export interface Scope {
  scope?: string;
  children: (Scope | string)[];
}

export interface Highlighted {
  _emitter: { rootNode: Scope };
}

declare const hljs: {
  getLanguage(name: string): object | undefined;
  highlight(code: string, options: { language: string; ignoreIllegals: boolean }): Highlighted;
};

export default hljs;
